"""Which layout a bundle gets, and whether its passes of many rows read weights of their own. Pure."""

from engine.compile.arguments import CompileArguments, Layout, Quant, Wide
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import method_of
from engine.errors import CompileError

DEFAULT_LAYOUT = Layout.POOL  # of free shapes with float activations on the CPU
WIDE_ROWS = 8  # int4 is faster below, int8 from here on; measured on two cores at hidden 1,024


def layout_of(arguments: CompileArguments) -> Layout:
    """The layout asked for, else the best that target, shapes and activations allow."""
    if arguments.layout is not None:
        return arguments.layout
    return DEFAULT_LAYOUT if _may_be_segmented(arguments) else Layout.POOL


def has_wide_storage(arguments: CompileArguments) -> bool:
    """Whether passes of `WIDE_ROWS` rows and more read weights of their own."""
    if arguments.wide is not None:
        return arguments.wide is Wide.INT8
    return layout_of(arguments) is Layout.SEGMENTS and arguments.quant is Quant.INT4


def check_layout(arguments: CompileArguments) -> None:
    """CompileError for options that the layout has no use for."""
    if layout_of(arguments) is not Layout.SEGMENTS:
        if arguments.wide is Wide.INT8:
            raise CompileError("--wide int8 is for --layout segments")
        return
    if arguments.is_npu:
        raise CompileError(f"--layout segments is for --target cpu, not for {arguments.target}")
    if method_of(arguments).activations is not Activations.FLOAT32:
        raise CompileError(f"--layout segments needs float activations, --quant {arguments.quant} has integers")
    if arguments.rows:
        raise CompileError("--layout segments has free shapes: it takes no --rows, --context or --same-past")
    if arguments.split is not None:
        raise CompileError("--split is for --layout pool: segments are cut at every layer")
    if arguments.wide is Wide.INT8 and arguments.quant is not Quant.INT4:
        raise CompileError(f"--wide int8 is made from 4-bit weights: it needs --quant int4, not {arguments.quant}")


def _may_be_segmented(arguments: CompileArguments) -> bool:
    is_float = method_of(arguments).activations is Activations.FLOAT32
    return is_float and not arguments.is_npu and not arguments.rows
