"""The exported graph. Shapes: b sequences, B rows of a block, M cache columns, L layers, K key heads of D numbers, G
query heads on each of them, N = b * B rows in all.

Every dimension is a number and every index a constant: which columns a row sees, what is written and what stays is
said by the masks alone.
"""

from dataclasses import dataclass

import numpy as np

from engine.compile.embedding import embed
from engine.compile.graph_builder import GraphBuilder
from engine.compile.layers import MASK_INPUT, LayerWriter
from engine.compile.linear import linear
from engine.compile.lowering import COS_INPUT, SIN_INPUT
from engine.compile.packed import PackedLayer, PackedPart
from engine.compile.weight_file import StoredTensor
from engine.diffusion_export.description import OUTPUTS, BlockExport
from engine.models.network import Network

IDS, POSITIONS, CACHE, INSERT, KEEP = "input_ids", "positions", "kv_cache", "insert_matrix", "keep_mask"
LOGITS, UPDATED = OUTPUTS


@dataclass(frozen=True, slots=True)
class RotaryTables:
    """cos and sin of every position, [M, rotary_dim / 2] each."""

    cos: StoredTensor
    sin: StoredTensor


@dataclass(frozen=True, slots=True)
class ExportWriter:
    """Writes the nodes of one exported graph."""

    graph: GraphBuilder
    layers: LayerWriter
    network: Network
    export: BlockExport

    def write(self, packed: PackedPart, tables: RotaryTables) -> None:
        """Everything from the token ids to the logits and the updated cache."""
        graph, export, spec = self.graph, self.export, self.network.spec
        assert packed.table is not None and packed.head is not None and packed.final_norm is not None
        rows = export.batch * export.block
        self._inputs()
        self._rotation(tables, rows)
        ids = graph.reshape(IDS, 1, rows)
        x = embed(graph, ids, packed.table)
        caches: list[str] = []
        for index, layer in enumerate(packed.layers):
            normed = self.layers.norm(x, graph.parameter(layer.attention_norm))
            attended = self._attention(normed, layer, index, caches)
            x = graph.op("Add", [x, linear(graph, attended, layer.output)])
            grown = self.layers.feed_forward(self.layers.norm(x, graph.parameter(layer.ffn_norm)), layer)
            x = graph.op("Add", [x, grown])
        logits = linear(graph, self.layers.norm(x, graph.parameter(packed.final_norm)), packed.head)
        graph.reshape(logits, export.batch, export.block, spec.vocab, name=LOGITS)
        graph.add_output(LOGITS, export.dtype, export.batch, export.block, spec.vocab)
        graph.reshape(graph.op("Concat", caches, axis=0), *export.cache_shape, name=UPDATED)
        graph.add_output(UPDATED, export.dtype, *export.cache_shape)

    def _inputs(self) -> None:
        for name, shape in self.export.input_shapes().items():
            self.graph.add_input(name, "int32" if name in (IDS, POSITIONS) else self.export.dtype, *shape)

    def _rotation(self, tables: RotaryTables, rows: int) -> None:
        """The tables' rows at the positions, under the names that the rotation reads: [1, 1, N, rotary_dim / 2]."""
        half = self.network.spec.rope.rotary_dim // 2
        for name, table in ((COS_INPUT, tables.cos), (SIN_INPUT, tables.sin)):
            gathered = self.graph.op("Gather", [self.graph.parameter(table), POSITIONS], axis=0)
            self.graph.reshape(gathered, 1, 1, rows, half, name=name)

    def _attention(self, x: str, packed: PackedLayer, index: int, caches: list[str]) -> str:
        """x [1, N, hidden] -> the heads' outputs [1, N, K * G * D]; the layer's updated caches join `caches`."""
        graph, network, spec, export = self.graph, self.network, self.network.spec, self.export
        widths = graph.integers(network.query_width, network.key_width, network.key_width)
        query, key, value = graph.op_many("Split", [linear(graph, x, packed.qkv), widths], 3, axis=-1)
        query = self._by_sequence(self.layers.rotated_heads(query, spec.heads, packed.q_norm), spec.heads)
        key = self._by_sequence(self.layers.rotated_heads(key, spec.kv_heads, packed.k_norm), spec.kv_heads)
        value = graph.reshape(value, export.batch, export.block, spec.kv_heads, spec.head_dim)
        value = graph.op("Transpose", [value], perm=[0, 2, 1, 3])
        keys = self._joined(key, 2 * index, caches)
        values = self._joined(value, 2 * index + 1, caches)
        # The query heads of a group are rows over one key head: no key is repeated.
        group = spec.heads // spec.kv_heads
        query = graph.reshape(query, export.batch, spec.kv_heads, group * export.block, spec.head_dim)
        scores = graph.op("MatMul", [query, graph.op("Transpose", [keys], perm=[0, 1, 3, 2])])
        weights = graph.op("Softmax", [graph.op("Add", [scores, self._mask(index, group)])], axis=-1)
        mixed = graph.op("MatMul", [weights, values])
        mixed = graph.reshape(mixed, export.batch, spec.heads, export.block, spec.head_dim)
        mixed = graph.op("Transpose", [mixed], perm=[0, 2, 1, 3])
        return graph.reshape(mixed, 1, export.batch * export.block, network.query_width)

    def _by_sequence(self, x: str, heads: int) -> str:
        """[1, heads, N, D] -> [b, heads, B, D]."""
        graph, export = self.graph, self.export
        apart = graph.reshape(x, heads, export.batch, export.block, self.network.spec.head_dim)
        return graph.op("Transpose", [apart], perm=[1, 0, 2, 3])

    def _joined(self, fresh: str, place: int, caches: list[str]) -> str:
        """One cache and the block behind it, [b, K, M + B, D]; what the cache becomes joins `caches`, [b, K, M, D].

        fresh [b, K, B, D]. place: 2 * layer for keys, 2 * layer + 1 for values.
        """
        graph, spec = self.graph, self.network.spec
        count, context = self.export.batch, self.export.context
        sides = (2 * spec.layers, count, spec.kv_heads, context, spec.head_dim)
        flat = CACHE if self.export.is_folded else graph.once("flat_cache", lambda: graph.reshape(CACHE, *sides))
        cache = graph.op("Gather", [flat, graph.constant(np.array(place, np.int64))], axis=0)
        kept = graph.op("Mul", [cache, self._of_layer(KEEP, place // 2)])
        written = graph.op("MatMul", [self._of_layer(INSERT, place // 2), fresh])
        caches.append(graph.op("Add", [kept, written]))
        return graph.op("Concat", [cache, fresh], axis=2)

    def _of_layer(self, mask: str, layer: int) -> str:
        """A mask [L, b, 1, ...] as [b, 1, ...] of one layer; the same for all where they share it."""
        index = 0 if self.export.mask_layers == 1 else layer
        graph = self.graph
        number = graph.constant(np.array(index, np.int64))
        return graph.once(f"{mask}_{index}", lambda: graph.op("Gather", [mask, number], axis=0))

    def _mask(self, layer: int, group: int) -> str:
        """The layer's attention mask for the rows of a group: [b, 1, G * B, M + B]."""
        graph = self.graph
        own = self._of_layer(MASK_INPUT, layer)
        return graph.once(f"folded_{own}", lambda: graph.op("Concat", [own] * group, axis=2))
