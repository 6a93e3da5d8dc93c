"""What options have to be for a model that reads images. Pure, but for opening the source."""

from dataclasses import replace

from engine.compile.arguments import CompileArguments, Layout, Split
from engine.compile.graphs.pool import DEEP_ROWS
from engine.compile.plan import layout_of
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import method_of
from engine.compile.sources.source import Source, open_source
from engine.errors import CompileError
from engine.models.network import Network


def open_for(arguments: CompileArguments) -> Source:
    """The source with its encoder where graphs can have one."""
    layout = layout_of(arguments)
    reads = layout is Layout.SEGMENTS or (arguments.is_npu and layout is Layout.POOL)
    return open_source(arguments.source, with_images=reads)


def resolve_split(arguments: CompileArguments, network: Network) -> CompileArguments:
    """The arguments with the split that images need, unless another was asked for."""
    if arguments.split is None and arguments.is_npu and network.reads_images:
        return replace(arguments, split=Split.HOST_LMHEAD)
    return arguments


def check_images(arguments: CompileArguments, network: Network) -> None:
    """CompileError unless the graphs are segments, or an NPU's that take embeddings."""
    if not network.reads_images or layout_of(arguments) is Layout.SEGMENTS:
        return
    reads = f"a model that reads images ({network.spec.family})"
    if not arguments.is_npu or layout_of(arguments) is not Layout.POOL:
        raise CompileError(f"{reads} needs --target cpu with --layout segments")
    if network.deepstack and method_of(arguments).activations is not Activations.FLOAT16:
        raise CompileError(f"{reads} takes --quant w4 or fp16 on an NPU")
    if arguments.split is not Split.HOST_LMHEAD:
        raise CompileError(f"{reads} takes --split {Split.HOST_LMHEAD} on an NPU")
    if network.deepstack and max(arguments.rows) > DEEP_ROWS:
        raise CompileError(f"{reads} takes at most {DEEP_ROWS} --rows, not {max(arguments.rows)}")
