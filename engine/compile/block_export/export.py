"""From a checkpoint to a folder with one exported graph, its weights and its description."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from engine.bundle.variant import PassShape
from engine.compile.arguments import CompileArguments, Quant, Split, Target
from engine.compile.block_export.arguments import QUANTS, Backend, ExportArguments
from engine.compile.block_export.graph import ExportWriter, RotaryTables
from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.graph_builder import GraphBuilder
from engine.compile.graphs import check_graph
from engine.compile.layers import LayerWriter
from engine.compile.lowering import FUSED, NPU, PLAIN, Lowering
from engine.compile.npu.half_weights import HalfWeightFile
from engine.compile.parts import PartPlan, plan_parts
from engine.compile.progress import ProgressSink
from engine.compile.source import Source, open_source
from engine.compile.stages import check_all_used, overflow_refused
from engine.compile.weight_file import WeightFile
from engine.compile.weights import WeightPacker
from engine.diffusion_export.cache_size import kv_cache_bytes
from engine.diffusion_export.description import EXPORT_FILE, EXPORT_VERSION, BlockExport
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief
from engine.models.family import read_network
from engine.models.network import Network
from engine.sources.publish import staged_folder

GRAPH_FILE, WEIGHTS_FILE = "model.onnx", "model.data"
DEFAULT_BLOCK, MAX_BLOCK, MAX_BATCH = 4, 1024, 256


@dataclass(frozen=True, slots=True)
class _Form:
    """How a backend's graph is written."""

    lowering: Lowering
    dtype: str
    weight_file: type[WeightFile]
    is_folded: bool = False


_FORMS = {
    Backend.CPU: _Form(FUSED, "float32", WeightFile),
    Backend.PORTABLE: _Form(PLAIN, "float32", WeightFile),
    Backend.NPU: _Form(NPU, "float16", HalfWeightFile, is_folded=True),
}


def export_blocks(arguments: ExportArguments, progress: ProgressSink) -> BlockExport:
    """Write the graph and return its description. Raises UnsupportedModel or CompileError; then nothing is left."""
    quant = arguments.quant or QUANTS[arguments.backend][0]
    source = open_source(arguments.source)
    network = read_network(source.config, arguments.context)
    export = _describe(arguments, quant, source, network)
    _check(arguments, quant, network, export)
    with source.tensors() as checkpoint, staged_folder(arguments.output, False) as folder:
        progress.stage(f"weights ({quant})", checkpoint.total_bytes(), "B")
        _write_graph(arguments, export, network, _Source(checkpoint, progress), folder)
        (folder / EXPORT_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(export)))
    size = kv_cache_bytes(
        export.layers, export.kv_heads, export.context, export.head_dim, np.dtype(export.dtype).itemsize, export.batch
    )
    mask = "" if export.mask_token is not None else "; the model names no mask token, so it cannot denoise by itself"
    progress.note(f"{arguments.output}: {export.quant} weights; the cache takes {size / 1e6:.1f} MB{mask}")
    return export


@dataclass(frozen=True, slots=True)
class _Source:
    checkpoint: Checkpoint
    progress: ProgressSink


def _write_graph(
    arguments: ExportArguments, export: BlockExport, network: Network, source: _Source, folder: Path
) -> None:
    form = _FORMS[arguments.backend]
    settings = CompileArguments(arguments.source, arguments.output, Target.CPU, Quant(export.quant))
    packer = WeightPacker(source.checkpoint, network, settings, source.progress.advance)
    with form.weight_file(folder, WEIGHTS_FILE) as file, overflow_refused(settings.quant):
        packed = packer.pack(_whole(network), file, file)
        tables = RotaryTables(*(file.add(name, table) for name, table in _rotary_tables(network, export.context)))
    check_all_used(source.checkpoint, network)
    graph = GraphBuilder(form.dtype, PassShape(export.batch * export.block, export.context))
    ExportWriter(graph, LayerWriter(graph, form.lowering, network), network, export).write(packed, tables)
    (folder / GRAPH_FILE).write_bytes(graph.model("block_diffusion").SerializeToString())
    check_graph(folder / GRAPH_FILE)


def _whole(network: Network) -> PartPlan:
    (part,) = plan_parts(Split.NONE, network.spec.layers)
    return part


def _rotary_tables(network: Network, context: int) -> tuple[tuple[str, Float32], tuple[str, Float32]]:
    """cos and sin of the positions 0 to context, times the rotary factor."""
    rope = network.spec.rope
    angles = np.outer(np.arange(context), np.array(rope.inverse_frequencies))
    cos, sin = np.cos(angles) * rope.factor, np.sin(angles) * rope.factor
    return ("rotary_cos", cos.astype(np.float32)), ("rotary_sin", sin.astype(np.float32))


def _describe(arguments: ExportArguments, quant: Quant, source: Source, network: Network) -> BlockExport:
    spec, config = network.spec, source.config
    mask_token = _integer(config, "mask_token_id")
    return BlockExport(
        export_version=EXPORT_VERSION,
        graph=GRAPH_FILE,
        batch=arguments.batch,
        block=arguments.block or _integer(config, "block_size") or DEFAULT_BLOCK,
        context=arguments.context,
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab=spec.vocab,
        dtype=_FORMS[arguments.backend].dtype,
        mask_layers=1 if arguments.shared_masks else spec.layers,
        backend=arguments.backend.value,
        quant=quant.value,
        mask_token=mask_token,
        stop_ids=source.end_ids(),
        is_folded=_FORMS[arguments.backend].is_folded,
    )


def _integer(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise CompileError(f"config.json: {key} must be a whole number, it is {brief(value)}")
    return value


def _check(arguments: ExportArguments, quant: Quant, network: Network, export: BlockExport) -> None:
    if arguments.output.exists():
        raise CompileError(f"{arguments.output} exists already; name another folder")
    if network.spec.recurrent is not None or network.spec.has_output_gate:
        raise UnsupportedModel(
            f"{network.spec.family} has layers that an exported graph cannot have: recurrent or gated"
        )
    taken = QUANTS[arguments.backend]
    if quant not in taken:
        raise CompileError(f"--backend {arguments.backend} takes --quant {', '.join(taken)}, not {quant}")
    if not 1 <= export.block <= MAX_BLOCK:
        raise CompileError(f"--block must be from 1 to {MAX_BLOCK}, it is {export.block}")
    if not 1 <= export.batch <= MAX_BATCH:
        raise CompileError(f"--batch must be from 1 to {MAX_BATCH}, it is {export.batch}")
    if not export.block <= export.context <= network.max_position:
        raise CompileError(
            f"--context must be from {export.block}, one block, to {network.max_position}, "
            f"what the checkpoint was made for; it is {export.context}"
        )
    if export.mask_token is not None and export.mask_token >= export.vocab:
        raise CompileError(f"config.json: mask_token_id {export.mask_token} is outside vocab_size {export.vocab}")
