"""Which options make sense for an encoder, and the shapes and settings it then gets. Pure."""

from dataclasses import fields, replace

from engine.bundle.variant import PassShape
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Split
from engine.compile.checks import MAX_ROWS, check_numbers
from engine.compile.quantization.table import FOR_ENCODERS
from engine.errors import CompileError

DEFAULT_ROWS = (32, 128, 512)
LONGEST_DEFAULT = 2048  # rows of a variant that nobody asked for; attention grows with their square
# Options of graphs with caches, or of heads that give logits.
FOREIGN = (
    *("context", "same_past", "whole_context", "split", "kv", "head", "calibration"),
    *("kv_update", "decode_slots", "lora"),
)


def check_encoder_arguments(arguments: CompileArguments) -> None:
    """CompileError naming the option and its limit."""
    usual = {field.name: field.default for field in fields(CompileArguments)}
    for name in FOREIGN:
        if getattr(arguments, name) != usual[name]:
            raise CompileError(f"--{name.replace('_', '-')} is for models that generate; this checkpoint is an encoder")
    if arguments.layout not in (None, Layout.POOL):
        raise CompileError(f"--layout {arguments.layout} is for models that generate; this checkpoint is an encoder")
    if arguments.quality not in (None, QualityLevel.FAST):
        raise CompileError(f"--quality {arguments.quality} is for models that generate; this checkpoint is an encoder")
    taken = FOR_ENCODERS[arguments.is_npu]
    if arguments.quant not in taken:
        listed = ", ".join(item.value for item in taken)
        raise CompileError(f"an encoder for --target {arguments.target} takes --quant {listed}, not {arguments.quant}")
    check_numbers(arguments)


def settled(arguments: CompileArguments) -> CompileArguments:
    """The arguments as the stages that encoders share with other models read them."""
    return replace(arguments, layout=Layout.POOL, split=Split.NONE)


def encoder_shapes(arguments: CompileArguments, longest: int) -> tuple[PassShape, ...]:
    """One for each number of rows. longest: most tokens of one text."""
    rows = arguments.rows
    if not rows:
        own = min(longest, LONGEST_DEFAULT, MAX_ROWS)
        rows = DEFAULT_ROWS if own <= DEFAULT_ROWS[-1] else (*DEFAULT_ROWS, own)
    return tuple(PassShape(count, 0) for count in sorted(set(rows)))
