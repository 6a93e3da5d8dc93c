"""Which layout a bundle gets, and whether its passes of many rows read weights of their own. Pure."""

from dataclasses import replace

from engine.compile.arguments import CompileArguments, KvType, Layout, Wide
from engine.compile.fused.plan import check_fused_options
from engine.compile.quantization.method import Activations, Method
from engine.compile.quantization.table import METHODS, method_of
from engine.errors import CompileError

DEFAULT_LAYOUT = Layout.SEGMENTS  # of free shapes with float activations on the CPU
HEAD_STEP = 8  # the attention operator takes heads of its multiples only
WIDE_ROWS = 8  # int4 is faster below, int8 from here on; measured on two cores at hidden 1,024


def layout_of(arguments: CompileArguments) -> Layout:
    """The layout asked for, else the best that target, shapes and activations allow."""
    if arguments.layout is not None:
        return arguments.layout
    return DEFAULT_LAYOUT if _may_be_segmented(arguments) else Layout.POOL


def wide_method(arguments: CompileArguments) -> Method | None:
    """How passes of `WIDE_ROWS` rows and more store the layers, None = as all passes do."""
    wide = method_of(arguments).wide
    if wide is None or arguments.wide is Wide.NONE or layout_of(arguments) is not Layout.SEGMENTS:
        return None
    return METHODS[wide]


def kv_type(arguments: CompileArguments) -> KvType:
    """What a bundle of segments stores keys and values as: int8 where 4-bit weights lose far more than that does."""
    if arguments.kv is not None:
        return arguments.kv
    return method_of(arguments).kv


def check_layout(arguments: CompileArguments) -> None:
    """CompileError for options that the layout has no use for."""
    check_fused_options(arguments, layout_of(arguments) is Layout.FUSED)
    if layout_of(arguments) is not Layout.SEGMENTS:
        if arguments.wide is Wide.INT8:
            raise CompileError("--wide int8 is for --layout segments")
        if arguments.kv is not None:
            raise CompileError(f"--kv {arguments.kv} is for --layout segments")
        if arguments.lora:
            raise CompileError("--lora is for --layout segments: other graphs have their weights fixed")
        return
    if arguments.is_npu:
        raise CompileError(f"--layout segments is for --target cpu, not for {arguments.target}")
    if method_of(arguments).activations is not Activations.FLOAT32:
        raise CompileError(f"--layout segments needs float activations, --quant {arguments.quant} has integers")
    if arguments.kv is KvType.FLOAT16:
        raise CompileError("--kv float16 is refused: the CPU's attention is 20 times slower over such caches")
    if arguments.rows:
        raise CompileError("--layout segments has free shapes: it takes no --rows, --context or --same-past")
    if arguments.whole_context:
        raise CompileError("--whole-context is for --layout pool: segments have caches")
    if arguments.split is not None:
        raise CompileError("--split is for --layout pool: segments are cut at every layer")
    if arguments.wide is Wide.INT8 and wide_method(arguments) is None:
        able = " or ".join(quant for quant, method in METHODS.items() if method.wide is not None)
        raise CompileError(f"--wide int8 is a second storage for --quant {able}, not for {arguments.quant}")


def settle_layout(arguments: CompileArguments, head_dim: int) -> CompileArguments:
    """The arguments with the layout that this model gets. CompileError for segments that it cannot have."""
    layout = layout_of(arguments)
    if layout is Layout.SEGMENTS and head_dim % HEAD_STEP:
        if arguments.layout is Layout.SEGMENTS or arguments.wide is Wide.INT8 or arguments.kv or arguments.lora:
            raise CompileError(f"--layout segments needs a head size that {HEAD_STEP} divides, it is {head_dim}")
        layout = Layout.POOL
    return replace(arguments, layout=layout)


def _may_be_segmented(arguments: CompileArguments) -> bool:
    is_float = method_of(arguments).activations is Activations.FLOAT32
    return is_float and not (arguments.is_npu or arguments.rows or arguments.split or arguments.whole_context)
