"""Exports a block-diffusion graph: one block of rows, the whole cache and the masks in, logits and the cache out.

The exported graph. Shapes: b sequences, B rows of a block, M cache columns, L layers, K key heads of D numbers, G
query heads on each of them, N = b * B rows in all.

Every dimension is a number and every index a constant: which columns a row sees, what is written and what stays is
said by the masks alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import onnx
from msgspec import Meta

from engine.bundle.manifest import GraphKind
from engine.bundle.specs import Heads, HeadSize, Layers, Name, Rows, TokenId, Tokens, Vocabulary
from engine.bundle.tensors import MASK
from engine.bundle.variant import StepShape
from engine.compile.arguments import QUANTS, Backend, CompileArguments, ExportArguments, Quant, Target
from engine.compile.calibration.attention import rotation_tables
from engine.compile.compilation import check_all_used, overflow_refused
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import FUSED, NPU, PLAIN, PLAIN_TABLES, Lowering, linear
from engine.compile.graphs.pool import one_part
from engine.compile.progress import ProgressSink
from engine.compile.quantisation.packed import PackedLayer, PackedPart
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.source import Source, open_source
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.family import read_network
from engine.models.network import Network
from engine.sources.publish import staged_folder

EXPORT_FILE = "export.json"
EXPORT_VERSION = 1
IDS, POSITIONS, CACHE, INSERT, KEEP = "input_ids", "positions", "kv_cache", "insert_matrix", "keep_mask"
INPUTS = (IDS, POSITIONS, CACHE, MASK, INSERT, KEEP)
OUTPUTS = LOGITS, UPDATED = ("logits", "updated_kv_cache")


class BlockExport(msgspec.Struct, frozen=True):
    """Shapes of one graph: b sequences, blocks of B tokens, M cache columns, L layers.

    dtype: of masks, cache and logits. mask_layers: first dimension of the masks: L, or 1 where all layers share them.
    mask_token: None where config.json names none. stop_ids: tokens that end an answer. is_folded: the cache's first two
    axes are one, because QNN takes no more than five; the bytes are the same.
    """

    export_version: int
    graph: Name
    batch: Rows
    block: Rows
    context: Tokens
    layers: Layers
    kv_heads: Heads
    head_dim: HeadSize
    vocab: Vocabulary
    dtype: Name
    mask_layers: Layers
    backend: Name
    quant: Name
    mask_token: TokenId | None = None
    stop_ids: Annotated[tuple[TokenId, ...], Meta(max_length=4096)] = ()
    is_folded: bool = False

    @property
    def cache_shape(self) -> tuple[int, ...]:
        """[L, 2, b, kv_heads, M, head_dim], or folded [L * 2, b, ...]; of the second axis, 0 is keys and 1 values."""
        sides = (2 * self.layers,) if self.is_folded else (self.layers, 2)
        return (*sides, self.batch, self.kv_heads, self.context, self.head_dim)

    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every input, in the graph's order."""
        rows, first = (self.batch, self.block), self.mask_layers
        mask = (first, self.batch, 1, self.block, self.context + self.block)
        insert, keep = (first, self.batch, 1, self.context, self.block), (first, self.batch, 1, self.context, 1)
        return dict(zip(INPUTS, (rows, rows, self.cache_shape, mask, insert, keep), strict=True))


@dataclass(frozen=True, slots=True)
class ExportWriter:
    """Writes the nodes of one exported graph."""

    graph: GraphBuilder
    layers: LayerWriter
    network: Network
    export: BlockExport

    def write(self, packed: PackedPart, tables: Sequence[StoredTensor]) -> None:
        """Everything from the token ids to the logits and the updated cache. tables: cos and sin of every position, [M,
        rotary_dim / 2] each."""
        graph, export, spec = self.graph, self.export, self.network.spec
        assert packed.table is not None and packed.head is not None and packed.final_norm is not None
        rows, caches = export.batch * export.block, list[str]()
        for name, shape in export.input_shapes().items():
            graph.add_input(name, "int32" if name in (IDS, POSITIONS) else export.dtype, *shape)
        for name, table in zip(PLAIN_TABLES, tables, strict=True):
            gathered = graph.op("Gather", [graph.parameter(table), POSITIONS], axis=0)
            graph.reshape(gathered, 1, 1, rows, spec.rope.rotary_dim // 2, name=name)
        x = embed(graph, graph.reshape(IDS, 1, rows), packed.table)
        for index, layer in enumerate(packed.layers):
            attended = self._attention(self.layers.normed(x, layer.attention_norm), layer, index, caches)
            x = graph.op("Add", [x, linear(graph, attended, layer.output)])
            x = self.layers.with_feed_forward(x, layer)
        logits = linear(graph, self.layers.norm(x, graph.parameter(packed.final_norm)), packed.head)
        graph.reshape(logits, export.batch, export.block, spec.vocab, name=LOGITS)
        graph.add_output(LOGITS, export.dtype, export.batch, export.block, spec.vocab)
        graph.reshape(graph.op("Concat", caches, axis=0), *export.cache_shape, name=UPDATED)
        graph.add_output(UPDATED, export.dtype, *export.cache_shape)

    def _attention(self, x: str, packed: PackedLayer, index: int, caches: list[str]) -> str:
        """x [1, N, hidden] -> the heads' outputs [1, N, K * G * D]; the layer's updated caches join `caches`."""
        graph, network, spec, export = self.graph, self.network, self.network.spec, self.export
        widths = graph.integers(network.query_width, network.key_width, network.key_width)
        query, key, value = graph.op_many("Split", [linear(graph, x, packed.qkv), widths], 3, axis=-1)
        query = self._by_sequence(self.layers.rotated_heads(query, spec.heads, packed.q_norm), spec.heads)
        key = self._by_sequence(self.layers.rotated_heads(key, spec.kv_heads, packed.k_norm), spec.kv_heads)
        value = graph.reshape(value, export.batch, export.block, spec.kv_heads, spec.head_dim)
        value = graph.transpose(value, 0, 2, 1, 3)
        keys = self._joined(key, 2 * index, caches)
        values = self._joined(value, 2 * index + 1, caches)
        # The query heads of a group are rows over one key head: no key is repeated.
        group = spec.heads // spec.kv_heads
        query = graph.reshape(query, export.batch, spec.kv_heads, group * export.block, spec.head_dim)
        scores = graph.op("MatMul", [query, graph.transpose(keys, 0, 1, 3, 2)])
        weights = graph.op("Softmax", [graph.op("Add", [scores, self._mask(index, group)])], axis=-1)
        mixed = graph.op("MatMul", [weights, values])
        mixed = graph.transpose(graph.reshape(mixed, export.batch, spec.heads, export.block, spec.head_dim), 0, 2, 1, 3)
        return graph.reshape(mixed, 1, export.batch * export.block, network.query_width)

    def _by_sequence(self, x: str, heads: int) -> str:
        """[1, heads, N, D] -> [b, heads, B, D]."""
        graph, export = self.graph, self.export
        apart = graph.reshape(x, heads, export.batch, export.block, self.network.spec.head_dim)
        return graph.transpose(apart, 1, 0, 2, 3)

    def _joined(self, fresh: str, place: int, caches: list[str]) -> str:
        """One cache and the block behind it, [b, K, M + B, D]; what the cache becomes joins `caches`, [b, K, M, D].
        fresh [b, K, B, D]. place: 2 * layer for keys, 2 * layer + 1 for values."""
        graph, spec, export = self.graph, self.network.spec, self.export
        sides = (2 * spec.layers, export.batch, spec.kv_heads, export.context, spec.head_dim)
        flat = CACHE if export.is_folded else graph.once("flat_cache", lambda: graph.reshape(CACHE, *sides))
        cache = graph.op("Gather", [flat, graph.constant(np.array(place, np.int64))], axis=0)
        kept = graph.op("Mul", [cache, self._of_layer(KEEP, place // 2)])
        written = graph.op("MatMul", [self._of_layer(INSERT, place // 2), fresh])
        caches.append(graph.op("Add", [kept, written]))
        return graph.op("Concat", [cache, fresh], axis=2)

    def _of_layer(self, mask: str, layer: int) -> str:
        """A mask [L, b, 1, ...] as [b, 1, ...] of one layer; the same for all where they share it."""
        graph, index = self.graph, 0 if self.export.mask_layers == 1 else layer
        number = graph.constant(np.array(index, np.int64))
        return graph.once(f"{mask}_{index}", lambda: graph.op("Gather", [mask, number], axis=0))

    def _mask(self, layer: int, group: int) -> str:
        """The layer's attention mask for the rows of a group: [b, 1, G * B, M + B]."""
        own = self._of_layer(MASK, layer)
        return self.graph.once(f"folded_{own}", lambda: self.graph.op("Concat", [own] * group, axis=2))


GRAPH_FILE, WEIGHTS_FILE = "model.onnx", "model.data"
DEFAULT_BLOCK, MAX_BLOCK, MAX_BATCH = 4, 1024, 256


# Lowering, and type of masks, cache and logits.
_FORMS: dict[Backend, tuple[Lowering, str]] = {
    Backend.CPU: (FUSED, "float32"),
    Backend.PORTABLE: (PLAIN, "float32"),
    Backend.NPU: (NPU, "float16"),
}


def export_blocks(arguments: ExportArguments, progress: ProgressSink) -> BlockExport:
    """Write the graph and return its description. Raises UnsupportedModel or CompileError; then nothing is left."""
    quant = arguments.quant or QUANTS[arguments.backend][0]
    source = open_source(arguments.source)
    network = read_network(source.config, arguments.context)
    export = _describe(arguments, quant, source, network)
    _check(arguments, quant, network, export)
    settings = CompileArguments(arguments.source, arguments.output, Target.CPU, quant)
    with source.tensors() as checkpoint, staged_folder(arguments.output, False) as folder:
        progress.stage(f"weights ({quant})", checkpoint.total_bytes(), "B")
        packer = WeightPacker(checkpoint, network, settings, progress.advance)
        _write_graph(arguments, export, packer, network, folder)
        check_all_used(checkpoint, network)
        (folder / EXPORT_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(export)))
    size = math.prod(export.cache_shape) * np.dtype(export.dtype).itemsize
    mask = "" if export.mask_token is not None else "; the model names no mask token, so it cannot denoise by itself"
    progress.note(f"{arguments.output}: {export.quant} weights; the cache takes {size / 1e6:.1f} MB{mask}")
    return export


def _write_graph(
    arguments: ExportArguments, export: BlockExport, packer: WeightPacker, network: Network, folder: Path
) -> None:
    lowering, dtype = _FORMS[arguments.backend]
    with WeightFile(folder, WEIGHTS_FILE, dtype) as file, overflow_refused(Quant(export.quant)):
        packed = packer.pack(one_part(GraphKind.DEFAULT, network.spec.layers), file, file)
        waves = rotation_tables(network.spec.rope, np.arange(export.context))
        tables = [file.add(f"rotary_{kind}", wave) for kind, wave in zip(("cos", "sin"), waves, strict=True)]
    graph = GraphBuilder(dtype, StepShape(export.batch * export.block, export.context))
    ExportWriter(graph, LayerWriter(graph, lowering, network), network, export).write(packed, tables)
    (folder / GRAPH_FILE).write_bytes(graph.model("block_diffusion").SerializeToString())
    onnx.checker.check_model(str(folder / GRAPH_FILE))  # contrib operators are outside its rules


def _describe(arguments: ExportArguments, quant: Quant, source: Source, network: Network) -> BlockExport:
    spec, config = network.spec, source.config
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
        dtype=_FORMS[arguments.backend][1],
        mask_layers=1 if arguments.shared_masks else spec.layers,
        backend=arguments.backend.value,
        quant=quant.value,
        mask_token=_integer(config, "mask_token_id"),
        stop_ids=source.end_ids(),
        is_folded=arguments.backend is Backend.NPU,
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
        unlike = "layers that an exported graph cannot have: recurrent or gated"
        raise UnsupportedModel(f"{network.spec.family} has {unlike}")
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
