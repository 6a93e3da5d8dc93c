"""The linear graphs of a segmented bundle.

Every node costs some microseconds on a step of one row, so rows keep rank 3 and heads are never transposed.
Shapes: N rows, H query heads on K key heads of D numbers each.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.bundle.model_spec import HeadForm, RopeSpec
from engine.bundle.segments import GAIN, GATE_IN, GATE_OUT, LAYER_INPUTS, SINKS
from engine.bundle.specs import LoraModule
from engine.bundle.vision import EMBEDDED, EMBEDS, deepstack_name
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import LOGIT_ROWS, ROWS, GraphBuilder
from engine.compile.graphs.layers import OUTPUT, QKV, LayerWriter, LoraPaths
from engine.compile.graphs.lowering import COS_INPUT, FUSED, SIN_INPUT, linear, rotate_rows
from engine.compile.graphs.recurrence import recurrent_output, start_recurrence
from engine.compile.graphs.streams import corrected, first_stream, merged, predicted, spread, with_path
from engine.compile.quantisation.packed import PackedEnding, PackedLatents, PackedLayer, PackedLayerInputs, PackedPart
from engine.compile.quantisation.weight_file import StoredTensor
from engine.models.layer_kinds import LatentAttention
from engine.models.network import Network, QkNorm

DTYPE = "float32"
IDS, HIDDEN_IN, HIDDEN_OUT, ATTENDED, LOGITS = "input_ids", "hidden_in", "hidden_out", "attended", "logits"
QUERY, KEY, VALUE = "query", "key", "value"


def start_latents(layers: LayerWriter, stacked: str, packed: PackedLatents) -> None:
    """Heads made of latents (MLA): what turns comes first in queries and keys, values are filled up with zeros.

    stacked [1, N, ...]: queries or their latents, latents of keys and values, what turns of the keys. Queries, keys and
    values [1, N, H * D] are given.
    """
    graph, network, latent = layers.graph, layers.network, _latent(layers)
    spec = network.spec
    widths = graph.integers(*network.qkv_outputs(0))
    query, low, turning = graph.op_many("Split", [stacked, widths], 3, axis=-1)
    if packed.query_up is not None and packed.query_norm is not None:
        query = linear(graph, _normed(layers, query, graph.parameter(packed.query_norm)), packed.query_up)
    both = linear(graph, _normed(layers, low, graph.parameter(packed.kv_norm)), packed.kv_up)
    kept, turned = _split(layers, query, latent.kept, latent.turned)
    wide = graph.reshape(turned, 1, ROWS, spec.heads * latent.turned)
    turned = graph.reshape(
        rotate_rows(graph, wide, spec.heads, latent.turned, spec.rope), *_apart(layers, latent.turned)
    )
    _join(layers, [turned, kept], QUERY)
    kept, value = _split(layers, both, latent.kept, latent.value_dim)
    shared = graph.reshape(rotate_rows(graph, turning, 1, latent.turned, spec.rope), 1, ROWS, 1, latent.turned)
    shared = graph.op("Expand", [shared, graph.integers(1, 1, spec.heads, 1)])
    _join(layers, [graph.reshape(shared, *_apart(layers, latent.turned)), kept], KEY)
    missing = latent.head_dim - latent.value_dim
    value = graph.op("Pad", [value, graph.integers(0, 0, 0, 0, 0, missing)]) if missing else value
    _join(layers, [value], VALUE)
    for name in (QUERY, KEY, VALUE):
        graph.add_output(name, DTYPE, 1, ROWS, network.query_width)


def values_alone(layers: LayerWriter, attended: str, rows: str) -> str:
    """[1, N, H * D] -> [1, N, H * V]: without what values were filled up with."""
    graph, latent, heads = layers.graph, _latent(layers), layers.network.spec.heads
    if latent.value_dim == latent.head_dim:
        return attended
    apart = graph.reshape(attended, 1, f"{rows}*{heads}", latent.head_dim)
    places = [graph.integers(number) for number in (0, latent.value_dim, -1)]
    return graph.reshape(graph.op("Slice", [apart, *places]), 1, rows, heads * latent.value_dim)


def _latent(layers: LayerWriter) -> LatentAttention:
    latent = layers.network.details.latent
    assert latent is not None
    return latent


def _normed(layers: LayerWriter, x: str, weight: str) -> str:
    return layers.lowering.norm(layers.graph, x, weight, _latent(layers).epsilon)


def _apart(layers: LayerWriter, size: int) -> tuple[int, str, int]:
    """Each head of each row by itself."""
    return 1, f"{ROWS}*{layers.network.spec.heads}", size


def _split(layers: LayerWriter, x: str, first: int, second: int) -> tuple[str, str]:
    """[1, N, H * (first + second)] -> two parts of each head."""
    graph = layers.graph
    apart = graph.reshape(x, *_apart(layers, first + second))
    parts = graph.op_many("Split", [apart, graph.integers(first, second)], 2, axis=-1)
    return parts[0], parts[1]


def _join(layers: LayerWriter, parts: list[str], name: str) -> None:
    graph = layers.graph
    joined = graph.op("Concat", parts, axis=-1) if len(parts) > 1 else parts[0]
    graph.reshape(joined, 1, ROWS, layers.network.query_width, name=name)


@dataclass(frozen=True, slots=True)
class LinearWriter:
    """Writes one linear graph: the end of one layer and the start of the next.

    Of several streams, hidden_in and hidden_out are those that the layer between them is given.
    """

    graph: GraphBuilder
    layers: LayerWriter
    network: Network

    def finish_layer(self, rows: str, packed: PackedLayer, layer: int, name: str = "") -> str:
        """Declares hidden_in [1, N, stream] and what the layer's mixer gave; what the layer gives [1, N, stream]."""
        graph, layers = self.graph, self.layers
        graph.add_input(HIDDEN_IN, DTYPE, 1, rows, self.network.spec.stream_width)
        grown = layers.normed(self._mixed(rows, packed, layer), packed.attention_post_norm)
        first = first_stream(layers, HIDDEN_IN)
        x = graph.op("Add", [first, grown])
        if packed.streams is not None:
            x = with_path(layers, x, layers.normed(first, packed.attention_norm), packed.streams)
            x = layers.with_feed_forward(x, packed)
            of_inputs = partial(self._of_inputs, packed=packed.ending, layer=layer, rows=rows)
            return corrected(layers, HIDDEN_IN, x, packed.streams, of_inputs)
        if packed.ending is None:
            return layers.with_feed_forward(x, packed, name)
        return self._ended(layers.with_feed_forward(x, packed), packed.ending, layer, rows, name)

    def _mixed(self, rows: str, packed: PackedLayer, layer: int) -> str:
        """Attention, recurrence or the sum of both, projected."""
        layers, recurrence = self.layers, packed.recurrence
        if recurrence is None:
            return layers.project(self._attended(rows, layer), packed.output, OUTPUT)
        recurrent = recurrent_output(layers, rows, recurrence)
        if recurrence.output is None:
            return layers.project(recurrent, packed.output, OUTPUT)
        attended = linear(self.graph, self._attended(rows, layer), packed.output)
        return self.graph.op("Add", [attended, linear(self.graph, recurrent, recurrence.output)])

    def _ended(self, x: str, packed: PackedEnding, layer: int, rows: str, name: str) -> str:
        """x with what the layer makes of its own inputs, times the layer's factor."""
        graph = self.graph
        if packed.gate is not None:
            x = graph.op("Add", [x, self._of_inputs(x, packed, layer, rows)])
        assert packed.scale is not None
        return graph.op("Mul", [x, graph.parameter(packed.scale)], name=name)

    def _of_inputs(self, x: str, packed: PackedEnding | None, layer: int, rows: str) -> str:
        """What the layer makes of its own inputs and x [1, N, hidden]; declares them."""
        graph, layers, spec = self.graph, self.layers, self.network.spec
        assert packed is not None and packed.gate is not None and packed.output is not None
        size = spec.layer_inputs
        graph.add_input(LAYER_INPUTS, DTYPE, 1, rows, spec.layers * size)
        places = [graph.integers(number) for number in (layer * size, (layer + 1) * size, -1)]
        given = graph.op("Slice", [LAYER_INPUTS, *places])
        gate = layers.activated(linear(graph, x, packed.gate))
        return layers.normed(linear(graph, graph.op("Mul", [gate, given]), packed.output), packed.norm)

    def add_layer_inputs(self, x: str, packed: PackedLayerInputs) -> None:
        """x [1, N, hidden], embedded -> what every layer takes of the rows: of their tokens, and of x."""
        graph, spec = self.graph, self.network.spec
        size, width = spec.layer_inputs, spec.layers * spec.layer_inputs
        apart = graph.reshape(linear(graph, x, packed.projection), 1, f"{ROWS}*{spec.layers}", size)
        normed = graph.reshape(self.layers.norm(apart, graph.parameter(packed.norm)), 1, ROWS, width)
        ids = IDS
        if packed.vocab < spec.vocab:
            has_row = graph.op("Less", [IDS, graph.constant(np.array(packed.vocab, np.int32))])
            ids = graph.op("Where", [has_row, IDS, graph.constant(np.array(0, np.int32))])
        of_tokens = graph.op("Mul", [embed(graph, ids, packed.table), graph.real(packed.table_scale)])
        graph.op("Add", [normed, of_tokens], name=LAYER_INPUTS)
        graph.add_output(LAYER_INPUTS, DTYPE, 1, ROWS, width)

    def _attended(self, rows: str, layer: int) -> str:
        """attended [1, N, H * D], times the sigmoid of its gate where there is one."""
        graph, width = self.graph, self.network.heads_of(layer).query_width
        graph.add_input(ATTENDED, DTYPE, 1, rows, width)
        if self.network.details.latent is not None:
            return values_alone(self.layers, ATTENDED, rows)
        if not self.network.spec.has_output_gate:
            return ATTENDED
        graph.add_input(GATE_IN, DTYPE, 1, rows, width)
        return graph.op("Mul", [ATTENDED, graph.op("Sigmoid", [GATE_IN])])

    def start_layer(self, x: str, packed: PackedLayer, layer: int) -> None:
        """x [1, N, stream] -> what the layer's mixers take."""
        network = self.network
        normed = self.layers.normed(first_stream(self.layers, x), packed.attention_norm)
        own = stacked = self.layers.project(normed, packed.qkv, QKV)
        recurrent = network.spec.recurrence_of(layer)
        if recurrent is not None and recurrent.is_beside:
            widths = self.graph.integers(sum(network.qkv_outputs(layer)), recurrent.inputs)
            stacked, own = self.graph.op_many("Split", [stacked, widths], 2, axis=-1)
        if packed.recurrence is not None:
            start_recurrence(self.layers, normed, own, packed.recurrence)
        if layer in network.spec.attention_layers:
            self._start_attention(stacked, packed, layer)

    def _start_attention(self, stacked: str, packed: PackedLayer, layer: int) -> None:
        """Query [1, N, H * D], key and value [1, N, K * D], normed and rotated."""
        graph, network, spec = self.graph, self.network, self.network.spec
        rope = spec.rope_of(layer)
        for name in (COS_INPUT, SIN_INPUT):
            if rope is not None:
                graph.add_input(name, DTYPE, 1, 1, ROWS, rope.rotary_dim // 2)
        heads = network.heads_of(layer)
        if packed.latents is not None:
            start_latents(self.layers, stacked, packed.latents)
            return
        query, *fresh = self._apart(stacked, layer, VALUE if packed.v_norm is None else "")
        if spec.has_output_gate:
            query = self._without_gate(query)
        gain = graph.add_input(GAIN, DTYPE, 1, ROWS, 1) if rope is not None and rope.gain else ""
        if gain:  # turning is linear: it is the same before
            query = graph.op("Mul", [query, gain])
        self._turn(query, heads, heads.heads, packed.q_norm, rope, QUERY)
        graph.add_output(QUERY, DTYPE, 1, ROWS, heads.query_width)
        if fresh:
            self._turn(fresh[0], heads, heads.kv_heads, packed.k_norm, rope, KEY)
            if packed.v_norm is not None:
                self._normed_heads(fresh[-1], heads.kv_heads, heads.head_dim, packed.v_norm, VALUE)
            for name in (KEY, VALUE):
                graph.add_output(name, DTYPE, 1, ROWS, heads.key_width)
        if packed.sinks is not None:
            graph.op("Identity", [graph.parameter(packed.sinks)], name=SINKS)
            graph.add_output(SINKS, DTYPE, spec.heads)

    def _apart(self, stacked: str, layer: int, name: str) -> list[str]:
        """Queries; keys, unless they are another layer's; values of that name, unless keys are made of the same."""
        graph, widths = self.graph, self.network.qkv_outputs(layer)
        if len(widths) == 1:
            return [stacked]
        return graph.op_many("Split", [stacked, graph.integers(*widths)], len(widths), name=name, axis=-1)

    def _without_gate(self, query: str) -> str:
        """[1, N, H * 2 * D], for each head its query and its gate -> the queries [1, N, H * D]; the gates are given."""
        graph, spec, width = self.graph, self.network.spec, self.network.query_width
        apart = graph.reshape(query, 1, f"{ROWS}*{spec.heads}", 2 * spec.head_dim)
        sizes = graph.integers(spec.head_dim, spec.head_dim)
        query, gate = graph.op_many("Split", [apart, sizes], 2, axis=-1)
        graph.reshape(gate, 1, ROWS, width, name=GATE_OUT)
        graph.add_output(GATE_OUT, DTYPE, 1, ROWS, width)
        return graph.reshape(query, 1, ROWS, width)

    def _turn(
        self, x: str, form: HeadForm, heads: int, norm: StoredTensor | None, rope: RopeSpec | None, name: str
    ) -> None:
        """[1, N, heads * D] -> the same shape under that name: normed (if there is a norm) and rotated."""
        graph, size, kind = self.graph, form.head_dim, self.network.details.qk_norm
        if norm is not None and kind is QkNorm.ALL:
            x = self.layers.norm(x, graph.parameter(norm))
        elif norm is not None and kind is not QkNorm.TURNED_HEADS:
            x = self._normed_heads(x, heads, size, norm)
        if rope is not None and kind is not QkNorm.TURNED_HEADS:
            rotate_rows(graph, x, heads, size, rope, name)
            return
        if rope is not None:
            x = rotate_rows(graph, x, heads, size, rope)
        if norm is not None and kind is QkNorm.TURNED_HEADS:
            x = self._normed_heads(x, heads, size, norm)
        graph.op("Identity", [x], name=name)

    def _normed_heads(self, x: str, heads: int, size: int, norm: StoredTensor, name: str = "") -> str:
        """Each head by itself."""
        graph = self.graph
        normed = self.layers.norm(graph.reshape(x, 1, f"{ROWS}*{heads}", size), graph.parameter(norm))
        return graph.reshape(normed, 1, ROWS, heads * size, name=name)


def linear_graph(packed: PackedPart, network: Network, part: int, modules: tuple[LoraModule, ...] = ()) -> GraphBuilder:
    """Part 1 embeds and starts layer 0; part i + 1 finishes layer i - 1 and starts layer i; the last gives logits.

    modules: what adapters may change.
    """
    graph, spec = GraphBuilder(DTYPE, None), network.spec
    rows = LOGIT_ROWS if part > spec.layers else ROWS
    paths = LoraPaths(graph, modules, rows)
    writer = LinearWriter(graph, LayerWriter(graph, FUSED, network, paths, rows), network)
    if part > spec.layers:
        _add_head(writer, packed)
        return graph
    if part == 1:
        assert packed.table is not None
        graph.add_input(IDS, "int32", 1, ROWS)
        rows = writer.layers.embedded(embed(graph, IDS, packed.table))
        if network.reads_images:
            graph.add_input(EMBEDS, DTYPE, 1, ROWS, spec.hidden)
            graph.add_input(EMBEDDED, DTYPE, 1, ROWS, 1)
            rows = graph.op("Where", [graph.op("Greater", [EMBEDDED, graph.real(0.5)]), EMBEDS, rows])
        x = rows if packed.spreading else graph.op("Identity", [rows], name=HIDDEN_OUT)
        if packed.layer_inputs is not None:
            writer.add_layer_inputs(x, packed.layer_inputs)
        if packed.spreading is not None:
            x = spread(writer.layers, x, packed.spreading)
    else:
        is_deep = part - 2 < network.deepstack
        x = writer.finish_layer(ROWS, packed.layers[part - 2], part - 2, "" if is_deep else HIDDEN_OUT)
        if is_deep:
            added = graph.add_input(deepstack_name(part - 2), DTYPE, 1, ROWS, spec.hidden)
            x = graph.op("Add", [x, added], name=HIDDEN_OUT)
    if (streams := packed.layers[part - 1].streams) is not None:
        x = predicted(writer.layers, x, streams, HIDDEN_OUT)
    graph.add_output(HIDDEN_OUT, DTYPE, 1, ROWS, spec.stream_width)
    writer.start_layer(x, packed.layers[part - 1], part - 1)
    return graph


def _add_head(writer: LinearWriter, packed: PackedPart) -> None:
    graph = writer.graph
    assert packed.final_norm is not None
    x = writer.finish_layer(LOGIT_ROWS, packed.layers[-1], writer.network.spec.layers - 1)
    x = merged(writer.layers, x, packed.merging) if packed.merging else x
    x = writer.layers.norm(x, graph.parameter(packed.final_norm))
    width = writer.network.spec.hidden
    if packed.head is not None:
        x, width = writer.layers.logits(linear(graph, x, packed.head)), writer.network.spec.vocab
    graph.op("Identity", [x], name=LOGITS)
    graph.add_output(LOGITS, DTYPE, 1, LOGIT_ROWS, width)
