"""Every method of quantisation. To add one: its file in this folder, its name in `Quant`, its row here."""

from dataclasses import replace

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.quantization.fp16 import FP16
from engine.compile.quantization.fp32 import FP32
from engine.compile.quantization.int4 import INT4
from engine.compile.quantization.int8 import INT8
from engine.compile.quantization.keep import KEEP
from engine.compile.quantization.method import Activations, Method
from engine.compile.quantization.w4 import W4
from engine.compile.quantization.w4a16 import W4A16
from engine.compile.quantization.w8a16 import W8A16
from engine.models.float_size import keeps_floats

METHODS: dict[Quant, Method] = {method.quant: method for method in (FP32, INT8, INT4, KEEP, FP16, W4, W8A16, W4A16)}
# Of encoders, by whether they are for an NPU: the others want caches or calibration.
FOR_ENCODERS = {False: (FP32.quant, INT8.quant, INT4.quant), True: (FP16.quant, W4.quant)}
CHOOSABLE = tuple(quant for quant, method in METHODS.items() if method.choice is not None)  # what --quality is for
UNROUNDED = FP32  # for the few numbers that no precision may touch


def quants_with(*activations: Activations) -> tuple[Quant, ...]:
    """The methods whose graphs have such activations."""
    return tuple(quant for quant, method in METHODS.items() if method.activations in activations)


def method_of(arguments: CompileArguments) -> Method:
    """How the layers are stored."""
    return METHODS[arguments.quant]


def with_kept_floats(arguments: CompileArguments, float_bytes: int, machine: int) -> CompileArguments:
    """What keeps blocks keeps a file of nothing but floats in float32, where memory is plenty.

    float_bytes: of the weights as float32, 0 for other files. machine: its memory in bytes, 0 = not known.
    """
    if arguments.quant is KEEP.quant and keeps_floats(float_bytes, machine):
        return replace(arguments, quant=FP32.quant)
    return arguments


def head_method(arguments: CompileArguments) -> Method:
    """How the LM head is stored."""
    return METHODS[arguments.head or method_of(arguments).head or arguments.quant]


def embedding_bits(arguments: CompileArguments) -> int:
    """Bits of one number of the embedding table."""
    return arguments.embedding_bits or method_of(arguments).embedding_bits


def is_exact(arguments: CompileArguments) -> bool:
    """True when no number of the checkpoint is rounded below float32."""
    return method_of(arguments).is_exact and head_method(arguments).is_exact and embedding_bits(arguments) == 32
