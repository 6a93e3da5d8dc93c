"""What a layer of the network becomes in a graph: norms, attention, the feed forward, paths of adapters.

Shapes: N rows, P past columns, C = P + N, G query heads on one key head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine.bundle.model_spec import RopeSpec
from engine.bundle.segments import FLOAT, A, B, ranks_axis
from engine.bundle.segments import MASK as RANKS_MASK
from engine.bundle.specs import STARTING, LoraModule
from engine.bundle.tensors import COS, MASK, WINDOW_MASK
from engine.compile.graphs.experts import grouped, routed
from engine.compile.graphs.graph_builder import CONTEXT, CONTRIB, PAST, WINDOW_CONTEXT, WINDOW_PAST, Dim, GraphBuilder
from engine.compile.graphs.lowering import (
    LOCAL_TABLES,
    PLAIN_TABLES,
    Lowering,
    Tables,
    activated,
    linear,
    linear_halves,
    linear_pieces,
)
from engine.compile.quantisation.packed import PackedLayer, PackedLinear
from engine.compile.quantisation.weight_file import StoredTensor
from engine.models.network import Activation, Network, NormKind, QkNorm

QKV, OUTPUT, GATE_UP, DOWN = STARTING, "output", "gate_up", "down"


def lora_modules(network: Network) -> tuple[LoraModule, ...]:
    """Every matrix of the layers, in the order in which the linear layers stack them."""
    names, spec, details = network.details.names, network.spec, network.details
    query, key, residual = network.query_width, network.key_width, details.multipliers.residual
    added = (0, 1.0) if residual == 1.0 else (spec.hidden, residual)
    first, *others = _stacked(names.qkv, QKV, spec.hidden, (query, key, key))
    if not details.has_qk_norm:  # the query matrix carries the scale of attention
        first = LoraModule(first.path, first.linear, first.inputs, first.outputs, query, network.attention_scale)
    return (
        *(first, *others, LoraModule(names.output, OUTPUT, query, spec.hidden, *added)),
        *_stacked(names.gate_up, GATE_UP, spec.hidden, (spec.ffn, spec.ffn)),
        LoraModule(names.down, DOWN, spec.ffn, spec.hidden, *added),
    )


def _stacked(paths: tuple[str, ...], linear: str, inputs: int, outputs: tuple[int, ...]) -> list[LoraModule]:
    """A family that stores its matrices stacked already has one path for all outputs."""
    widths = outputs if len(paths) == len(outputs) else (sum(outputs),)
    return [LoraModule(path, linear, inputs, width) for path, width in zip(paths, widths, strict=True)]


@dataclass(frozen=True, slots=True)
class LayerWriter:
    """Writes the layers of one graph. modules: what adapters may change. rows: the axis of their masks and of an output
    that tells chosen experts, "" = there are none."""

    graph: GraphBuilder
    lowering: Lowering
    network: Network
    modules: tuple[LoraModule, ...] = ()
    rows: str = ""

    def project(self, x: str, packed: PackedLinear, name: str) -> str:
        """x [1, N, inputs] -> [1, N, outputs] and what the adapters of each row add to them."""
        product = linear(self.graph, x, packed)
        paths = [self._path(x, module) for module in self.modules if module.linear == name]
        if not paths:
            return product
        return self.graph.op("Add", [product, self.graph.op("Concat", paths, axis=-1) if paths[1:] else paths[0]])

    def _path(self, x: str, module: LoraModule) -> str:
        graph, ranks = self.graph, ranks_axis(module)
        a = graph.add_input(A + module.name, FLOAT, ranks, module.inputs)
        b = graph.add_input(B + module.name, FLOAT, ranks, module.outputs)
        mask = graph.add_input(RANKS_MASK + module.name, FLOAT, 1, self.rows, ranks)
        narrow = graph.op("FusedMatMul", [x, a], domain=CONTRIB, transB=1)
        return graph.op("MatMul", [graph.op("Mul", [narrow, mask]), b])

    def norm(self, x: str, weight: str) -> str:
        """The family's norm over the last axis."""
        if self.network.details.norm is NormKind.LAYER:
            return self.graph.op("LayerNormalization", [x, weight], axis=-1, epsilon=self.network.norm_epsilon)
        return self.lowering.norm(self.graph, x, weight, self.network.norm_epsilon)

    def layer(self, x: str, packed: PackedLayer, index: int) -> str:
        """x [1, N, hidden] -> the same shape; declares the layer's KV inputs and outputs."""
        attended = self._attention(self.normed(x, packed.attention_norm), packed, index)
        grown = self.normed(linear(self.graph, attended, packed.output), packed.attention_post_norm)
        return self.with_feed_forward(self.graph.op("Add", [x, grown]), packed)

    def normed(self, x: str, weight: StoredTensor | None) -> str:
        """The norm, x itself where there is none."""
        return x if weight is None else self.norm(x, self.graph.parameter(weight))

    def with_feed_forward(self, x: str, packed: PackedLayer, name: str = "") -> str:
        """x [1, N, hidden] plus what the feed-forward makes of it, or the experts that each row chooses, if any do."""
        if packed.gate_up is None and packed.experts is None:
            return self.graph.op("Identity", [x], name=name)
        grown = self._fed_forward(x, packed)
        return self.graph.op("Add", [x, self.normed(grown, packed.ffn_post_norm)], name=name)

    def _fed_forward(self, x: str, packed: PackedLayer) -> str:
        graph, details, experts = self.graph, self.network.details.experts, packed.experts
        normed = self.normed(x, packed.ffn_norm)
        dense = "" if packed.gate_up is None else self._dense(normed, packed.gate_up, packed)
        if experts is None or details is None:
            return dense
        by_expert = partial(grouped, activated=self.activated)
        if (beside := experts.beside) is not None:
            asked, given = self.normed(x, beside.router_norm), self.normed(x, beside.norm)
            mixed = by_expert(graph, given, linear(graph, asked, experts.router), experts, details, rows=self.rows)
            return graph.op("Add", [self.normed(dense, beside.dense_post_norm), self.normed(mixed, beside.post_norm)])
        mix = routed if self.network.details.activation is Activation.GATED_SILU else by_expert
        mixed = mix(graph, normed, linear(graph, normed, experts.router), experts, details, rows=self.rows)
        if not dense:
            return mixed
        if experts.shared_gate is not None:
            dense = graph.op("Mul", [dense, graph.op("Sigmoid", [linear(graph, normed, experts.shared_gate)])])
        return graph.op("Add", [mixed, dense])

    def _dense(self, normed: str, gate_up: PackedLinear, packed: PackedLayer) -> str:
        """act(gate) * up, or act(up), projected down."""
        assert packed.down is not None
        if self.network.details.activation.matrices == 1:
            return self.project(self.activated(self.project(normed, gate_up, GATE_UP)), packed.down, DOWN)
        if any(module.linear == GATE_UP for module in self.modules):
            gate, up = self.graph.split(self.project(normed, gate_up, GATE_UP), *[self.network.spec.ffn] * 2)
        else:
            gate, up = linear_halves(self.graph, normed, gate_up)
        if packed.gate_cutoff is not None:
            gate = self._above(gate, packed.gate_cutoff)
        return self.project(self.graph.op("Mul", [self.activated(gate), up]), packed.down, DOWN)

    def _above(self, gate: str, cutoff: float) -> str:
        """gate [1, N, ffn] -> how far it is above so many deviations over its row's mean, 0 below."""
        graph = self.graph
        apart = graph.op("Sub", [gate, graph.op("ReduceMean", [gate, graph.integers(-1)], keepdims=1)])
        square = graph.op("ReduceMean", [graph.op("Mul", [apart, apart]), graph.integers(-1)], keepdims=1)
        least = graph.op("Mul", [graph.op("Sqrt", [square]), graph.real(cutoff)])
        return graph.op("Relu", [graph.op("Sub", [apart, least])])

    def activated(self, gate: str) -> str:
        """What a gate multiplies with, or what the down projection takes."""
        return activated(self.graph, gate, self.network.details.activation, self.lowering)

    def embedded(self, x: str) -> str:
        """The embedding's rows as the first layer takes them."""
        factor = self.network.details.multipliers.embedding
        return x if factor == 1.0 else self.graph.op("Mul", [x, self.graph.real(factor)])

    def logits(self, x: str) -> str:
        """What the head gives, below its cap: the last norm has divided by it already."""
        cap = self.network.details.logit_softcap
        return self.graph.op("Mul", [self.graph.op("Tanh", [x]), self.graph.real(cap)]) if cap else x

    def _attention(self, x: str, packed: PackedLayer, index: int) -> str:
        """x [1, N, hidden] -> the heads' outputs [1, N, heads * head_dim]."""
        graph, network, spec = self.graph, self.network, self.network.spec
        query, key, value = linear_pieces(graph, x, packed.qkv, (network.query_width, *[network.key_width] * 2))
        query = self.rotated_heads(query, spec.heads, packed.q_norm, index)
        key = self.rotated_heads(key, spec.kv_heads, packed.k_norm, index)
        value = graph.reshape(value, 1, "rows", spec.kv_heads, spec.head_dim)
        fresh_key, fresh_value = f"past_key_{index}_out", f"past_value_{index}_out"
        graph.transpose(key, 1, 0, 3, 2, name=fresh_key)
        graph.transpose(value, 2, 0, 1, 3, name=fresh_value)
        query = graph.op("Reshape", [query, self._folded_shape("query_shape", spec.kv_heads, spec.head_dim)])
        if graph.shape is not None and not graph.shape.past:
            mixed = self._mix_alone(query, fresh_key, fresh_value, index)
        else:
            dtype = str(graph.dtype)
            graph.add_output(fresh_key, dtype, spec.kv_heads, 1, spec.head_dim, "rows")
            graph.add_output(fresh_value, dtype, spec.kv_heads, 1, "rows", spec.head_dim)
            mixed = self._mix(query, fresh_key, fresh_value, index)
        mixed = graph.transpose(graph.reshape(mixed, 1, spec.heads, "rows", spec.head_dim), 0, 2, 1, 3)
        return graph.reshape(mixed, 1, "rows", network.query_width)

    def rotated_heads(self, x: str, heads: int, norm: StoredTensor | None, index: int = 0) -> str:
        """[1, N, heads * d] -> [1, heads, N, d], normed (if there is a norm) and rotated as the layer wants it."""
        graph, spec, kind = self.graph, self.network.spec, self.network.details.qk_norm
        if kind is QkNorm.ALL:
            x = self.normed(x, norm)
        if norm is not None and kind is QkNorm.HEADS:
            x = self._normed_heads(x, heads, norm)
        x = graph.transpose(graph.reshape(x, 1, "rows", heads, spec.head_dim), 0, 2, 1, 3)
        if (rope := spec.rope_of(index)) is not None:
            x = self.turned(x, rope)
        if norm is not None and kind is QkNorm.TURNED_HEADS:
            x = graph.reshape(self._normed_heads(x, heads, norm), 1, heads, "rows", spec.head_dim)
        return x

    def _normed_heads(self, x: str, heads: int, norm: StoredTensor) -> str:
        """Each head by itself. Rank 3: the HTP's norm of a tensor of rank 4 is garbage for many shapes (QNN 2.51)."""
        apart = self.graph.reshape(x, 1, f"rows*{heads}", self.network.spec.head_dim)
        return self.norm(apart, self.graph.parameter(norm))

    def turned(self, x: str, rope: RopeSpec) -> str:
        """x [1, heads, N, d], rotated."""
        return self.lowering.rotate(self.graph, x, self.network.spec.head_dim, rope, self.tables(rope))

    def tables(self, rope: RopeSpec) -> Tables:
        """The inputs that a rotation turns by."""
        return PLAIN_TABLES if rope == self.network.spec.rope else LOCAL_TABLES

    def _folded_shape(self, key: str, first: int, last: Dim) -> str:
        """[first, 1, G * N, last], so that a key head is multiplied once for its whole group; one row alone may be
        spread to [first, G, 1, last] instead. Free graphs choose when they run."""
        graph, spec = self.graph, self.network.spec
        group = spec.heads // spec.kv_heads
        folded, spread = graph.dims(first, 1, f"rows*{group}", last), graph.dims(first, group, 1, last)
        if not self.lowering.spreads_single_row:
            return folded
        if graph.shape is not None:
            return spread if graph.shape.rows == 1 else folded

        def is_single() -> str:
            there = {each.name for each in graph.inputs}  # where all layers turn by the second rotation, only its own
            cos = COS if COS in there else LOCAL_TABLES[0]
            return graph.op("Equal", [graph.op("Shape", [cos], start=2, end=3), graph.integers(1)])

        return graph.once(key, lambda: graph.op("Where", [graph.once("is_single", is_single), spread, folded]))

    def visible(self, index: int) -> str:
        """What is added to the scores of a layer [1, 1, N, C]."""
        return WINDOW_MASK if self.network.spec.attention_of(index).window else MASK

    def columns(self, index: int) -> tuple[str, str]:
        """Past columns of a layer, and those with the rows' own. Free graphs have as many of every layer."""
        has_own = self.graph.shape is not None and self.network.spec.attention_of(index).window
        return (WINDOW_PAST, WINDOW_CONTEXT) if has_own else (PAST, CONTEXT)

    def _folded_mask(self, index: int) -> str:
        """The layer's mask repeated for the group, in the layout of the scores."""
        graph, spec, mask = self.graph, self.network.spec, self.visible(index)

        def folded() -> str:
            repeated = graph.op("Expand", [mask, graph.integers(1, spec.heads // spec.kv_heads, 1, 1)])
            return graph.op("Reshape", [repeated, self._folded_shape("mask_shape", 1, self.columns(index)[1])])

        return graph.once(f"folded_{mask}", folded)

    def _mix(self, query: str, fresh_key: str, fresh_value: str, index: int) -> str:
        """Attention over the cache's columns and the rows' own."""
        graph, spec, dtype = self.graph, self.network.spec, str(self.graph.dtype)
        past, context = self.columns(index)
        past_key = graph.add_input(f"past_key_{index}_in", dtype, spec.kv_heads, 1, spec.head_dim, past)
        past_value = graph.add_input(f"past_value_{index}_in", dtype, spec.kv_heads, 1, past, spec.head_dim)

        def columns() -> str:
            """[P, N], numbers in a fixed graph, else taken from the caches' shapes."""
            if graph.shape is not None:
                return graph.dims(past, graph.shape.rows)
            return graph.op("Concat", [graph.op("Shape", [key], start=3, end=4) for key in keys], axis=0)

        keys, values = (past_key, fresh_key), (past_value, fresh_value)
        split = partial(graph.once, f"{context}_split", columns)
        return self.mixed(index, query, keys, values, partial(self._folded_mask, index), split)

    def mixed(
        self,
        index: int,
        query: str,
        keys: tuple[str, str],
        values: tuple[str, str],
        mask: Callable[[], str],
        columns: Callable[[], str],
        ending: str = "",
    ) -> str:
        """Softmax over past and fresh columns of a layer together; the caches themselves are never joined. columns: how
        many of both there are. It and the mask are written where they are used. ending: of nodes' names."""
        graph = self.graph
        with graph.scope(f"mix_{index}", ending):
            scores = self._capped(graph.op("Concat", [graph.op("MatMul", [query, key]) for key in keys], axis=-1))
            weights = graph.op("Softmax", [graph.op("Add", [scores, mask()])], axis=-1)
            shares = graph.op_many("Split", [weights, columns()], 2, axis=-1)
            return graph.op("Add", [graph.op("MatMul", pair) for pair in zip(shares, values, strict=True)])

    def _capped(self, scores: str) -> str:
        graph, cap = self.graph, self.network.details.attention_softcap
        if not cap:
            return scores
        return graph.op("Mul", [graph.op("Tanh", [graph.op("Div", [scores, graph.real(cap)])]), graph.real(cap)])

    def _mix_alone(self, query: str, key: str, value: str, index: int) -> str:
        """Softmax over the rows' own columns: a graph without a past keeps nothing."""
        graph = self.graph
        mask = self._folded_mask(index)
        scores = graph.op("Add", [self._capped(graph.op("MatMul", [query, key])), mask])
        return graph.op("MatMul", [graph.op("Softmax", [scores], axis=-1), value])
