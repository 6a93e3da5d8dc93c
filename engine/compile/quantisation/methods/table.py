"""Every method of quantisation. To add one: its file in this folder, its name in `Quant`, its row here."""

from dataclasses import replace

from engine.compile.arguments import CompileArguments, QualityLevel, Quant
from engine.compile.quantisation.methods.integer_blocks import INT4, INT8, KEEP, W4
from engine.compile.quantisation.methods.integer_graphs import W4A16, W8A16
from engine.compile.quantisation.methods.integer_rows import INT8_ROWS
from engine.compile.quantisation.methods.method import FP16, FP32, Activations, Method
from engine.models.config_fields import keeps_floats

METHODS: dict[Quant, Method] = {method.quant: method for method in (FP32, INT8, INT4, KEEP, FP16, W4, W8A16, W4A16)}
# Of encoders, by whether they are for an NPU: the others want caches or calibration.
FOR_ENCODERS = {False: (FP32.quant, INT8.quant, INT4.quant, KEEP.quant), True: (FP16.quant, W4.quant)}
FOR_SPEECH = {False: (FP32.quant, INT8.quant, INT4.quant), True: (FP16.quant,)}
CHOOSABLE = tuple(quant for quant, method in METHODS.items() if method.choice is not None)  # what --quality is for
WITH_ROWS = tuple(quant for quant, method in METHODS.items() if method.has_rows)  # what --amx is for
UNROUNDED = FP32  # for the few numbers that no precision may touch


def quants_with(*activations: Activations) -> tuple[Quant, ...]:
    """The methods whose graphs have such activations."""
    return tuple(quant for quant, method in METHODS.items() if method.activations in activations)


def method_of(arguments: CompileArguments) -> Method:
    return METHODS[arguments.quant]


def take_block(arguments: CompileArguments) -> bool:
    """Whether --block and --asymmetric change anything."""
    return any(METHODS[quant].takes_block for quant in (arguments.quant, arguments.head) if quant)


def keeps_codes(arguments: CompileArguments) -> bool:
    """Whether codes that a file brings stay as they are."""
    return arguments.quant is KEEP.quant


def with_kept_floats(arguments: CompileArguments, float_bytes: int, machine: int) -> CompileArguments:
    """What keeps blocks keeps a file of nothing but floats in float32, where memory is plenty. float_bytes: of the
    weights as float32, 0 for other files. machine: its memory in bytes, 0 = not known."""
    if keeps_codes(arguments) and keeps_floats(float_bytes, machine):
        return replace(arguments, quant=FP32.quant)
    return arguments


def wide_method(arguments: CompileArguments) -> Method:
    """How matrices of the layers are stored that 4 bits do not suffice."""
    return METHODS[method_of(arguments).wider or arguments.quant]


def hearing_method(arguments: CompileArguments) -> Method:
    """How matrices are stored that an encoder of sound multiplies all its positions with. Rows of 8 bits take half the
    time of blocks, and cost a Whisper little; a language model loses ten times as much."""
    method = method_of(arguments)
    return INT8_ROWS if method in (INT8, INT4) else method


def head_method(arguments: CompileArguments) -> Method:
    """How the LM head is stored: with 8 bits where matrices may have them, as 4 lose as much as half the layers."""
    method = method_of(arguments)
    wider = None if arguments.quality is QualityLevel.FAST else method.wider
    return METHODS[arguments.head or method.head or wider or arguments.quant]


def embedding_bits(arguments: CompileArguments) -> int:
    """Bits of one number of the embedding table."""
    return arguments.embedding_bits or method_of(arguments).embedding_bits


def is_exact(arguments: CompileArguments) -> bool:
    """True when no number of the checkpoint is rounded below float32."""
    return method_of(arguments).is_exact and head_method(arguments).is_exact and embedding_bits(arguments) == 32
