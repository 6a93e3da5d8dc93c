"""The linear graphs of a segmented bundle.

Every node costs some microseconds on a step of one row, so rows keep rank 3 and heads are never transposed.
Shapes: N rows, H query heads on K key heads of D numbers each; S streams, which between layers lie side by side.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.bundle.model_spec import HeadForm, RopeSpec
from engine.bundle.segments import GAIN, GATE_IN, GATE_OUT, LAYER_INPUTS, SINKS
from engine.bundle.specs import LoraModule
from engine.bundle.vision import EMBEDDED, EMBEDS, deepstack_name
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import LOGIT_ROWS, ROWS, GraphBuilder
from engine.compile.graphs.layers import OUTPUT, QKV, LayerWriter
from engine.compile.graphs.lowering import FUSED, PLAIN_TABLES, linear, rotate_rows
from engine.compile.graphs.recurrence import recurrent_output, start_recurrence
from engine.compile.quantisation.packed import (
    PackedEnding,
    PackedLatents,
    PackedLayer,
    PackedLayerInputs,
    PackedLinear,
    PackedPart,
    PackedStreams,
)
from engine.compile.quantisation.weight_file import StoredTensor
from engine.models.layer_kinds import LatentAttention
from engine.models.network import Network, QkNorm

DTYPE = "float32"
IDS, HIDDEN_IN, HIDDEN_OUT, ATTENDED, LOGITS = "input_ids", "hidden_in", "hidden_out", "attended", "logits"
QUERY, KEY, VALUE = "query", "key", "value"


_LEAST = 1e-5  # of a mean square that is divided by


@dataclass(frozen=True, slots=True)
class StreamWriter(LayerWriter):
    """Writes what goes from stream to stream (AltUp), and the path of low rank beside attention (LAuReL)."""

    def first_stream(self, streams: str) -> str:
        """Side by side -> the first [1, N, hidden]; itself where it is the only one."""
        spec = self.network.spec
        return streams if spec.streams == 1 else self.graph.slice(streams, 0, spec.hidden, -1)

    def spread(self, x: str, packed: PackedLinear) -> str:
        """x [1, N, hidden], embedded -> streams side by side: x and others that are as large."""
        graph, spec = self.graph, self.network.spec
        others = graph.reshape(linear(graph, x, packed), ROWS, spec.streams - 1, spec.hidden)
        target = graph.reshape(self._magnitude(x), ROWS, 1, 1)
        alike = graph.op("Mul", [others, graph.op("Div", [target, self._magnitude(others, _LEAST)])])
        return self._side_by_side(graph.op("Concat", [graph.reshape(x, ROWS, 1, spec.hidden), alike], axis=1))

    def predicted(self, streams: str, packed: PackedStreams, name: str) -> str:
        """Streams side by side -> what a layer takes them for, under that name."""
        graph, count = self.graph, self.network.spec.streams
        shares = linear(graph, self._shares(self.first_stream(streams), packed), packed.prediction)
        mixed = graph.op("MatMul", [graph.reshape(shares, ROWS, count, count), self._apart(streams)])
        return self._side_by_side(mixed, name)

    def with_path(self, x: str, normed: str, packed: PackedStreams) -> str:
        """x [1, N, hidden] behind attention, which took `normed` -> both paths together."""
        graph = self.graph
        narrow = linear(graph, linear(graph, normed, packed.left), packed.right)
        path = graph.op("Add", [normed, self.normed(narrow, packed.path_norm)])
        return graph.op("Mul", [graph.op("Add", [x, path]), graph.real(0.5**0.5)])

    def corrected(self, streams: str, x: str, packed: PackedStreams, of_inputs: Callable[[str], str]) -> str:
        """Predicted streams and x [1, N, hidden], which a layer made of the first -> streams side by side. of_inputs:
        what a layer adds to all but the first, of the first [1, N, hidden]."""
        graph, spec = self.graph, self.network.spec
        shares = graph.reshape(linear(graph, self._shares(x, packed), packed.correction), ROWS, spec.streams, 1)
        change = graph.reshape(graph.op("Sub", [x, self.first_stream(streams)]), ROWS, 1, spec.hidden)
        apart = graph.op("Add", [self._apart(streams), graph.op("Mul", [change, shares])])
        first = self.first_stream(self._side_by_side(apart))
        grown = of_inputs(graph.op("Mul", [first, graph.parameter(packed.scale)]))
        others = graph.constant(np.array([0.0] + [1.0] * (spec.streams - 1), np.float32)[:, None])
        added = graph.op("Mul", [graph.reshape(grown, ROWS, 1, spec.hidden), others])
        return self._side_by_side(graph.op("Add", [apart, added]))

    def merged(self, streams: str, packed: tuple[PackedLinear, ...]) -> str:
        """Streams side by side -> what the last norm takes [1, N, hidden]: the mean of all, as large as the first."""
        graph, spec = self.graph, self.network.spec
        total, *others = graph.split(streams, *[spec.hidden] * spec.streams)
        target = self._magnitude(total)
        for other, matrix in zip(others, packed, strict=True):
            x = linear(graph, other, matrix)
            share = graph.op("Div", [target, self._magnitude(x, _LEAST)])
            total = graph.op("Add", [total, graph.op("Mul", [x, share])])
        return graph.op("Mul", [total, graph.real(1 / spec.streams)])

    def _shares(self, x: str, packed: PackedStreams) -> str:
        """x [1, N, hidden] -> what coefficients of streams are made of [1, N, S]."""
        return self.graph.op("Tanh", [linear(self.graph, self.normed(x, packed.router_norm), packed.router)])

    def _magnitude(self, x: str, least: float = 0.0) -> str:
        """The root of the mean square over the last axis."""
        graph = self.graph
        square = graph.op("ReduceMean", [graph.op("Mul", [x, x]), graph.integers(-1)], keepdims=1)
        return graph.op("Sqrt", [graph.op("Max", [square, graph.real(least)]) if least else square])

    def _apart(self, streams: str) -> str:
        return self.graph.reshape(streams, ROWS, self.network.spec.streams, self.network.spec.hidden)

    def _side_by_side(self, apart: str, name: str = "") -> str:
        return self.graph.reshape(apart, 1, ROWS, self.network.spec.stream_width, name=name)


@dataclass(frozen=True, slots=True)
class LinearWriter(StreamWriter):
    """Writes one linear graph: the end of one layer and the start of the next. Of several streams, hidden_in and
    hidden_out are those that the layer between them is given."""

    def finish_layer(self, packed: PackedLayer, layer: int, name: str = "") -> str:
        """Declares hidden_in [1, N, stream] and what the layer's mixer gave; what the layer gives [1, N, stream]."""
        graph = self.graph
        graph.add_input(HIDDEN_IN, DTYPE, 1, self.rows, self.network.spec.stream_width)
        grown = self.normed(self._mixed(packed, layer), packed.attention_post_norm)
        first = self.first_stream(HIDDEN_IN)
        x = graph.op("Add", [first, grown])
        if packed.streams is not None:
            x = self.with_path(x, self.normed(first, packed.attention_norm), packed.streams)
            x = self.with_feed_forward(x, packed)
            of_inputs = partial(self._of_inputs, packed=packed.ending, layer=layer)
            return self.corrected(HIDDEN_IN, x, packed.streams, of_inputs)
        if packed.ending is None:
            return self.with_feed_forward(x, packed, name)
        return self._ended(self.with_feed_forward(x, packed), packed.ending, layer, name)

    def _mixed(self, packed: PackedLayer, layer: int) -> str:
        """Attention, recurrence or the sum of both, projected."""
        recurrence = packed.recurrence
        if recurrence is None:
            return self.project(self._attended(layer), packed.output, OUTPUT)
        recurrent = recurrent_output(self, recurrence)
        if recurrence.output is None:
            return self.project(recurrent, packed.output, OUTPUT)
        attended = linear(self.graph, self._attended(layer), packed.output)
        return self.graph.op("Add", [attended, linear(self.graph, recurrent, recurrence.output)])

    def _ended(self, x: str, packed: PackedEnding, layer: int, name: str) -> str:
        """x with what the layer makes of its own inputs, times the layer's factor."""
        assert packed.scale is not None
        if packed.gate is not None:
            x = self.graph.op("Add", [x, self._of_inputs(x, packed, layer)])
        return self.graph.op("Mul", [x, self.graph.parameter(packed.scale)], name=name)

    def _of_inputs(self, x: str, packed: PackedEnding | None, layer: int) -> str:
        """What the layer makes of its own inputs and x [1, N, hidden]; declares them."""
        graph, spec = self.graph, self.network.spec
        assert packed is not None and packed.gate is not None and packed.output is not None
        size = spec.layer_inputs
        graph.add_input(LAYER_INPUTS, DTYPE, 1, self.rows, spec.layers * size)
        given = graph.slice(LAYER_INPUTS, layer * size, (layer + 1) * size, -1)
        gate = self.activated(linear(graph, x, packed.gate))
        return self.normed(linear(graph, graph.op("Mul", [gate, given]), packed.output), packed.norm)

    def add_layer_inputs(self, x: str, packed: PackedLayerInputs) -> None:
        """x [1, N, hidden], embedded -> what every layer takes of the rows: of their tokens, and of x."""
        graph, spec = self.graph, self.network.spec
        size, width = spec.layer_inputs, spec.layers * spec.layer_inputs
        apart = graph.reshape(linear(graph, x, packed.projection), 1, f"{ROWS}*{spec.layers}", size)
        normed = graph.reshape(self.norm(apart, graph.parameter(packed.norm)), 1, ROWS, width)
        ids = IDS
        if packed.vocab < spec.vocab:
            has_row = graph.op("Less", [IDS, graph.constant(np.array(packed.vocab, np.int32))])
            ids = graph.op("Where", [has_row, IDS, graph.constant(np.array(0, np.int32))])
        of_tokens = graph.op("Mul", [embed(graph, ids, packed.table), graph.real(packed.table_scale)])
        graph.op("Add", [normed, of_tokens], name=LAYER_INPUTS)
        graph.add_output(LAYER_INPUTS, DTYPE, 1, ROWS, width)

    def _attended(self, layer: int) -> str:
        """attended [1, N, H * D], times the sigmoid of its gate where there is one."""
        graph, width = self.graph, self.network.heads_of(layer).query_width
        graph.add_input(ATTENDED, DTYPE, 1, self.rows, width)
        if self.network.details.latent is not None:
            return self._values_alone(ATTENDED)
        if not self.network.spec.has_output_gate:
            return ATTENDED
        graph.add_input(GATE_IN, DTYPE, 1, self.rows, width)
        return graph.op("Mul", [ATTENDED, graph.op("Sigmoid", [GATE_IN])])

    def start_layer(self, x: str, packed: PackedLayer, layer: int) -> None:
        """x [1, N, stream] -> what the layer's mixers take."""
        network = self.network
        normed = self.normed(self.first_stream(x), packed.attention_norm)
        own = stacked = self.project(normed, packed.qkv, QKV)
        recurrent = network.spec.recurrence_of(layer)
        if recurrent is not None and recurrent.is_beside:
            stacked, own = self.graph.split(stacked, sum(network.qkv_outputs(layer)), recurrent.inputs)
        if packed.recurrence is not None:
            start_recurrence(self, normed, own, packed.recurrence)
        if layer in network.spec.attention_layers:
            self._start_attention(stacked, packed, layer)

    def _start_attention(self, stacked: str, packed: PackedLayer, layer: int) -> None:
        """Query [1, N, H * D], key and value [1, N, K * D], normed and rotated."""
        graph, spec, heads = self.graph, self.network.spec, self.network.heads_of(layer)
        rope, widths = spec.rope_of(layer), self.network.qkv_outputs(layer)
        if rope is not None:
            for name in PLAIN_TABLES:
                graph.add_input(name, DTYPE, 1, 1, ROWS, rope.rotary_dim // 2)
        if packed.latents is not None:
            self._start_latents(stacked, packed.latents)
            return
        # Keys are there unless they are another layer's, values unless keys are made of the same.
        last = "" if packed.v_norm else VALUE
        query, *fresh = [stacked] if len(widths) == 1 else graph.split(stacked, *widths, name=last)
        if spec.has_output_gate:
            query = self._without_gate(query)
        if rope is not None and rope.gain:  # turning is linear: it is the same before
            query = graph.op("Mul", [query, graph.add_input(GAIN, DTYPE, 1, ROWS, 1)])
        self._turn(query, heads, heads.heads, packed.q_norm, rope, QUERY)
        graph.add_output(QUERY, DTYPE, 1, ROWS, heads.query_width)
        if fresh:
            self._turn(fresh[0], heads, heads.kv_heads, packed.k_norm, rope, KEY)
            if packed.v_norm is not None:
                self._heads_normed(fresh[-1], heads.kv_heads, heads.head_dim, packed.v_norm, VALUE)
            for name in (KEY, VALUE):
                graph.add_output(name, DTYPE, 1, ROWS, heads.key_width)
        if packed.sinks is not None:
            graph.give(graph.parameter(packed.sinks), SINKS, DTYPE, spec.heads)

    def _without_gate(self, query: str) -> str:
        """[1, N, H * 2 * D], for each head its query and its gate -> the queries [1, N, H * D]; the gates are given."""
        graph, spec, width = self.graph, self.network.spec, self.network.query_width
        apart = graph.reshape(query, 1, f"{ROWS}*{spec.heads}", 2 * spec.head_dim)
        query, gate = graph.split(apart, spec.head_dim, spec.head_dim)
        graph.reshape(gate, 1, ROWS, width, name=GATE_OUT)
        graph.add_output(GATE_OUT, DTYPE, 1, ROWS, width)
        return graph.reshape(query, 1, ROWS, width)

    def _turn(
        self, x: str, form: HeadForm, heads: int, norm: StoredTensor | None, rope: RopeSpec | None, name: str
    ) -> None:
        """[1, N, heads * D] -> the same shape under that name: normed (if there is a norm) and rotated."""
        size, kind = form.head_dim, self.network.details.qk_norm
        is_last = rope is not None and kind is not QkNorm.TURNED_HEADS
        if kind is QkNorm.ALL:
            x = self.normed(x, norm)
        elif norm is not None and kind is not QkNorm.TURNED_HEADS:
            x = self._heads_normed(x, heads, size, norm)
        if rope is not None:
            x = rotate_rows(self.graph, x, heads, size, rope, name if is_last else "")
        if norm is not None and kind is QkNorm.TURNED_HEADS:
            x = self._heads_normed(x, heads, size, norm)
        if not is_last:
            self.graph.op("Identity", [x], name=name)

    def _heads_normed(self, x: str, heads: int, size: int, norm: StoredTensor, name: str = "") -> str:
        """Each head by itself."""
        graph = self.graph
        normed = self.norm(graph.reshape(x, 1, f"{ROWS}*{heads}", size), graph.parameter(norm))
        return graph.reshape(normed, 1, ROWS, heads * size, name=name)

    def _start_latents(self, stacked: str, packed: PackedLatents) -> None:
        """Heads made of latents (MLA): what turns comes first in queries and keys, values are filled up with zeros.
        stacked [1, N, ...]: queries or their latents, latents of keys and values, what turns of the keys. Queries, keys
        and values [1, N, H * D] are given."""
        graph, network, latent, spec = self.graph, self.network, self._latent, self.network.spec
        query, low, turning = graph.split(stacked, *network.qkv_outputs(0))
        if packed.query_up is not None and packed.query_norm is not None:
            query = linear(graph, self._normed_latent(query, packed.query_norm), packed.query_up)
        both = linear(graph, self._normed_latent(low, packed.kv_norm), packed.kv_up)
        kept, turned = self._by_head(query, latent.kept, latent.turned)
        wide = graph.reshape(turned, 1, ROWS, spec.heads * latent.turned)
        turned = rotate_rows(graph, wide, spec.heads, latent.turned, spec.rope)
        self._give_heads(QUERY, graph.reshape(turned, 1, f"{ROWS}*{spec.heads}", latent.turned), kept)
        kept, value = self._by_head(both, latent.kept, latent.value_dim)
        shared = graph.reshape(rotate_rows(graph, turning, 1, latent.turned, spec.rope), 1, ROWS, 1, latent.turned)
        shared = graph.op("Expand", [shared, graph.integers(1, 1, spec.heads, 1)])
        self._give_heads(KEY, graph.reshape(shared, 1, f"{ROWS}*{spec.heads}", latent.turned), kept)
        if missing := latent.head_dim - latent.value_dim:
            value = graph.op("Pad", [value, graph.integers(0, 0, 0, 0, 0, missing)])
        self._give_heads(VALUE, value)

    def _values_alone(self, attended: str) -> str:
        """[1, N, H * D] -> [1, N, H * V]: without what values were filled up with."""
        graph, latent, heads = self.graph, self._latent, self.network.spec.heads
        if latent.value_dim == latent.head_dim:
            return attended
        apart = graph.reshape(attended, 1, f"{self.rows}*{heads}", latent.head_dim)
        return graph.reshape(graph.slice(apart, 0, latent.value_dim, -1), 1, self.rows, heads * latent.value_dim)

    @property
    def _latent(self) -> LatentAttention:
        assert self.network.details.latent is not None
        return self.network.details.latent

    def _normed_latent(self, x: str, weight: StoredTensor) -> str:
        return self.lowering.norm(self.graph, x, self.graph.parameter(weight), self._latent.epsilon)

    def _by_head(self, x: str, *sizes: int) -> list[str]:
        """[1, N, H * sum of sizes] -> the parts of each head."""
        apart = self.graph.reshape(x, 1, f"{ROWS}*{self.network.spec.heads}", sum(sizes))
        return self.graph.split(apart, *sizes)

    def _give_heads(self, name: str, *parts: str) -> None:
        """Parts of each head, side by side, as an output [1, N, H * D]."""
        joined, width = self.graph.op("Concat", parts, axis=-1) if parts[1:] else parts[0], self.network.query_width
        self.graph.reshape(joined, 1, ROWS, width, name=name)
        self.graph.add_output(name, DTYPE, 1, ROWS, width)


def linear_graph(packed: PackedPart, network: Network, part: int, modules: tuple[LoraModule, ...] = ()) -> GraphBuilder:
    """Part 1 embeds and starts layer 0; part i + 1 finishes layer i - 1 and starts layer i; the last gives logits.
    modules: what adapters may change."""
    graph, spec = GraphBuilder(DTYPE, None), network.spec
    rows = LOGIT_ROWS if part > spec.layers else ROWS
    writer = LinearWriter(graph, FUSED, network, modules, rows)
    if part > spec.layers:
        _add_head(writer, packed)
        return graph
    if part == 1:
        assert packed.table is not None
        graph.add_input(IDS, "int32", 1, ROWS)
        rows = writer.embedded(embed(graph, IDS, packed.table))
        if network.reads_images:
            graph.add_input(EMBEDS, DTYPE, 1, ROWS, spec.hidden)
            graph.add_input(EMBEDDED, DTYPE, 1, ROWS, 1)
            rows = graph.op("Where", [graph.op("Greater", [EMBEDDED, graph.real(0.5)]), EMBEDS, rows])
        x = rows if packed.spreading else graph.op("Identity", [rows], name=HIDDEN_OUT)
        if packed.layer_inputs is not None:
            writer.add_layer_inputs(x, packed.layer_inputs)
        if packed.spreading is not None:
            x = writer.spread(x, packed.spreading)
    else:
        is_deep = part - 2 < network.deepstack
        x = writer.finish_layer(packed.layers[part - 2], part - 2, "" if is_deep else HIDDEN_OUT)
        if is_deep:
            added = graph.add_input(deepstack_name(part - 2), DTYPE, 1, ROWS, spec.hidden)
            x = graph.op("Add", [x, added], name=HIDDEN_OUT)
    if (streams := packed.layers[part - 1].streams) is not None:
        x = writer.predicted(x, streams, HIDDEN_OUT)
    graph.add_output(HIDDEN_OUT, DTYPE, 1, ROWS, spec.stream_width)
    writer.start_layer(x, packed.layers[part - 1], part - 1)
    return graph


def _add_head(writer: LinearWriter, packed: PackedPart) -> None:
    spec, width = writer.network.spec, writer.network.spec.hidden
    x = writer.finish_layer(packed.layers[-1], spec.layers - 1)
    x = writer.merged(x, packed.merging) if packed.merging else x
    x = writer.normed(x, packed.final_norm)
    if packed.head is not None:
        x, width = writer.logits(linear(writer.graph, x, packed.head)), spec.vocab
    writer.graph.give(x, LOGITS, DTYPE, 1, LOGIT_ROWS, width)
