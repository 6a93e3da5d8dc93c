"""Which layout a bundle gets, and what it stores keys and values as. Pure."""

from dataclasses import replace

from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments, KvType, Layout
from engine.compile.fused.plan import check_fused_options
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import is_exact, method_of
from engine.errors import CompileError

DEFAULT_LAYOUT = Layout.SEGMENTS  # of free shapes with float activations on the CPU
HEAD_STEP = 8  # the attention operator takes heads of its multiples only


def layout_of(arguments: CompileArguments) -> Layout:
    """The layout asked for, else the best that target, shapes and activations allow."""
    if arguments.layout is not None:
        return arguments.layout
    return DEFAULT_LAYOUT if _may_be_segmented(arguments) else Layout.POOL


def kv_type(arguments: CompileArguments) -> KvType:
    """What a bundle of segments stores keys and values as; int8 where asked for, or chosen by what it loses."""
    return arguments.kv or KvType.FLOAT32


def tries_int8(arguments: CompileArguments) -> bool:
    """Whether int8 caches are measured: where they are asked for, or may be chosen. Floats stay floats, and vectors
    show every rounding."""
    if arguments.kv is not None:
        return arguments.kv is KvType.INT8
    return not is_exact(arguments) and arguments.task is not ModelTask.EMBED


def check_layout(arguments: CompileArguments) -> None:
    """CompileError for options that the layout has no use for."""
    check_fused_options(arguments, layout_of(arguments) is Layout.FUSED)
    if layout_of(arguments) is not Layout.SEGMENTS:
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


def settle_layout(arguments: CompileArguments, head_dim: int) -> CompileArguments:
    """The arguments with the layout that this model gets. CompileError for segments that it cannot have."""
    layout = layout_of(arguments)
    if layout is Layout.SEGMENTS and head_dim % HEAD_STEP:
        if arguments.layout is Layout.SEGMENTS or arguments.kv or arguments.lora:
            raise CompileError(f"--layout segments needs a head size that {HEAD_STEP} divides, it is {head_dim}")
        layout = Layout.POOL
    return replace(arguments, layout=layout)


def _may_be_segmented(arguments: CompileArguments) -> bool:
    is_float = method_of(arguments).activations is Activations.FLOAT32
    return is_float and not (arguments.is_npu or arguments.rows or arguments.split or arguments.whole_context)
