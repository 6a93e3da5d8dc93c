"""Fused graphs: floats or integers, updated caches as outputs, and the contract of names and order.

The row graph computes attention once for all rows, a fused graph once for each cache. So one calibration, made with
row graphs, tells the encodings of both: `twin_of` says whose encoding a tensor has. What updates caches is added to a
finished graph, whatever type these have: keys and values are moved, never computed with.
Shapes: N rows, n of them a branch's, P past columns, K KV heads, G query heads on one of them, H head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import onnx

from engine.bundle.fused import (
    CONTROL,
    CONTROL_HEAD,
    FusedShape,
    cache_tensors,
    fresh_tensors,
    fused_shape,
    input_order,
)
from engine.bundle.manifest import TensorSpec
from engine.bundle.model_spec import ModelSpec
from engine.bundle.specs import FusedSpec
from engine.bundle.tensors import FLOATS, MASK, Encoding
from engine.compile.compilation import Compilation
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import (
    LOGIT_ROWS,
    ROWS,
    WIDE,
    FloatGraph,
    GraphBuilder,
    WrittenGraph,
    prepare,
    rename,
    replace_all,
    value_info,
)
from engine.compile.graphs.integer_graphs import IntegerRewriter, coded_as
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import PLAIN_TABLES, Lowering, linear
from engine.compile.graphs.pool import GraphPlan
from engine.compile.plan import fused_spec
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import method_of
from engine.compile.quantisation.packed import PackedPart
from engine.errors import CompileError
from engine.models.network import Network

AGAIN = "__"  # behind it, in a name: for which cache a tensor of the row graph is made, or as which part


def twin_of(name: str) -> str:
    """The tensor of the row graph that has the same encoding."""
    return name.partition(AGAIN)[0]


class FusedBuilder(GraphBuilder):
    """Also writes nodes that the row graph does not have: they move numbers and do not count."""

    def moved(self, kind: str, inputs: Sequence[str], like: str, **attributes: Any) -> str:
        """A node whose result has the encoding of `like`."""
        number = len(self._nodes)
        with self.scope(f"moved_{number}"):
            return self.op(kind, inputs, name=f"{twin_of(like)}{AGAIN}{number}", **attributes)

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        return self.moved("Slice", [x, *(self.integers(number) for number in (start, stop, axis))], x)

    def laid_out(self, x: str, *dims: int) -> str:
        """The same numbers in another shape."""
        return self.moved("Reshape", [x, self.integers(*dims)], x)

    def narrow(self, rows: int) -> None:
        """From here on the graph has so many rows; what was made for all rows is not used again."""
        self._numbers |= {ROWS: rows, LOGIT_ROWS: rows}
        self._shared.clear()


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows `start` to `stop` - 1 of a graph, which read one cache and themselves."""

    cache: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def branches_of(shape: FusedShape) -> tuple[Branch, ...]:
    """The prompt's rows if there are any, then each decode."""
    starts = [0, *range(shape.prefill_rows, shape.rows)] if shape.prefill_rows else list(range(shape.rows))
    return tuple(map(Branch, shape.caches, starts, [*starts[1:], shape.rows]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayerWriter(LayerWriter):
    """Writes the layers of one fused graph. mask: the graph's mask as it is added to scores, [1, 1, N, P + N]."""

    fused: FusedBuilder
    shape: FusedShape
    mask: str = MASK

    def _mix(self, query: str, fresh_key: str, fresh_value: str, index: int) -> str:
        """Attention of each branch over its cache and its own rows; nothing of another branch is read."""
        graph, spec = self.fused, self.network.spec
        group, size = spec.heads // spec.kv_heads, spec.head_dim
        whole = graph.laid_out(query, spec.kv_heads, group, self.shape.rows, size)
        mixed = []
        for branch in branches_of(self.shape):
            rows = graph.cut(whole, 2, branch.start, branch.stop)
            key = graph.cut(fresh_key, 3, branch.start, branch.stop)
            value = graph.cut(fresh_value, 2, branch.start, branch.stop)
            mask = graph.once(f"mask_{branch.cache}", partial(self._mask_of, branch))
            folded = graph.laid_out(rows, *self._folded(branch, size))
            found = self._attend(branch, (folded, key, value, mask), index)
            mixed.append(graph.laid_out(found, spec.kv_heads, group, branch.rows, size))
        return mixed[0] if len(mixed) == 1 else graph.moved("Concat", mixed, mixed[0], axis=2)

    def _folded(self, branch: Branch, last: int) -> tuple[int, ...]:
        """Query heads as rows of their key head; of a lone row apart where the target prefers that."""
        spec = self.network.spec
        group = spec.heads // spec.kv_heads
        if branch.rows == 1 and self.lowering.spreads_single_row:
            return spec.kv_heads, group, 1, last
        return spec.kv_heads, 1, branch.rows * group, last

    def _mask_of(self, branch: Branch) -> str:
        """The branch's part of the mask [1, 1, n, P + n]: its cache's columns and those of its own rows."""
        graph, past = self.fused, self._past
        rows = graph.cut(self.mask, 2, branch.start, branch.stop)
        if branch.start == 0:
            return graph.cut(rows, 3, 0, past + branch.stop)
        parts = [graph.cut(rows, 3, 0, past), graph.cut(rows, 3, past + branch.start, past + branch.stop)]
        return graph.moved("Concat", parts, self.mask, axis=3)

    def _attend(self, branch: Branch, operands: tuple[str, str, str, str], index: int) -> str:
        """The row graph's nodes of `LayerWriter.mixed`."""
        graph, spec, dtype = self.fused, self.network.spec, str(self.fused.dtype)
        query, key, value, mask = operands
        past_key, past_value = cache_tensors("past", branch.cache, index)
        graph.add_input(past_key, dtype, spec.kv_heads, 1, spec.head_dim, "past")
        graph.add_input(past_value, dtype, spec.kv_heads, 1, "past", spec.head_dim)
        return self.mixed(
            index,
            query,
            (past_key, key),
            (past_value, value),
            lambda: graph.once(f"folded_mask_{branch.cache}", partial(self._folded_over, branch, mask)),
            lambda: graph.integers(self._past, branch.rows),
            f"{AGAIN}{branch.cache}",
        )

    def _folded_over(self, branch: Branch, mask: str) -> str:
        """A branch's mask repeated for the group, in the layout of its scores."""
        graph, spec = self.fused, self.network.spec
        repeated = graph.op("Expand", [mask, graph.integers(1, spec.heads // spec.kv_heads, 1, 1)])
        return graph.reshape(repeated, 1, *self._folded(branch, self._past + branch.rows)[1:])

    @property
    def _past(self) -> int:
        assert self.fused.shape is not None
        return self.fused.shape.past


KEY_AXIS, VALUE_AXIS = 3, 2  # of the columns


class CacheUpdater(GraphBuilder):
    """Writes the nodes that update the caches of one graph. Rows that hold nothing go into the last column, which
    nobody reads. has_pairs: codes are moved as numbers between a dequantise and a quantise node, the one form in which
    an NPU's back end knows that they are codes; a CPU moves them as they are."""

    def __init__(self, model: ModelSpec, shape: FusedShape, past: int, has_pairs: bool = False) -> None:
        super().__init__("float32", None, prefix="update_")
        self._model = model
        self._step = shape
        self._past = past
        self._has_pairs = has_pairs

    def add_to(self, graph: onnx.GraphProto, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Write every updated cache; the new outputs, each stored as the cache it is of."""
        caches, made = {tensor.name: tensor for tensor in inputs}, []
        for branch in branches_of(self._step):
            columns = self._columns(branch)
            indices = self._spread(columns, branch, KEY_AXIS), self._spread(columns, branch, VALUE_AXIS)
            for layer in range(self._model.layers):
                pasts, updated = (cache_tensors(name, branch.cache, layer) for name in ("past", "updated_past"))
                for side, axis in enumerate((KEY_AXIS, VALUE_AXIS)):
                    spec = caches[pasts[side]]
                    bounds = [self.integers(number) for number in (branch.start, branch.stop, axis)]
                    rows = self._moved(spec, "Slice", [fresh_tensors(layer)[side]], bounds)
                    data = [pasts[side], rows]
                    self._moved(spec, "ScatterElements", data, [indices[side]], updated[side], axis=axis)
                    made.append(msgspec.structs.replace(spec, name=updated[side]))
        graph.node.extend(self._nodes)
        graph.initializer.extend(self._tensors.values())
        return tuple(made)

    def _moved(
        self, spec: TensorSpec, kind: str, data: list[str], where: list[str], name: str = "", **attributes: Any
    ) -> str:
        """A node that moves numbers stored as `spec` says. data: its first input and its last; where: those between."""
        if not self._has_pairs or spec.scale is None:
            return self.op(kind, [data[0], *where, *data[1:]], name=name, **attributes)
        stored = [self.constant(np.array(spec.scale, np.float32)), self.constant(np.array(spec.zero_point, spec.dtype))]
        first, *last = (self.op("DequantizeLinear", [each, *stored]) for each in data)
        return self.op("QuantizeLinear", [self.op(kind, [first, *where, *last], **attributes), *stored], name=name)

    def _columns(self, branch: Branch) -> str:
        """Where each row of a branch goes, int32 [n]."""
        unused = self.constant(np.full(branch.rows, self._past - 1, np.int32))
        if branch.cache == "prefill":
            # Row r of n holds token past + count + r - n, if that is not before the first of the chunk.
            ahead = self.constant(np.arange(-branch.rows, 0, dtype=np.int32))
            place = self.op("Add", [self._control(2), ahead])
            is_used = self.op("Greater", [place, self.constant(np.array([-1], np.int32))])
            return self.op("Where", [is_used, self.op("Add", [self._control(4), place]), unused])
        slot = branch.start - self._step.prefill_rows
        # Decodes take the last slots.
        least = self.constant(np.array([self._step.slots - slot - 1], np.int32))
        is_used = self.op("Greater", [self._control(1), least])
        return self.op("Where", [is_used, self._control(CONTROL_HEAD + slot), unused])

    def _control(self, index: int) -> str:
        bounds = [self.integers(number) for number in (index, index + 1, 0)]
        return self.once(f"control_{index}", lambda: self.op("Slice", [CONTROL, *bounds]))

    def _spread(self, columns: str, branch: Branch, axis: int) -> str:
        """Columns [n] for every head and number of a branch's keys [K, 1, H, n] or values [K, 1, n, H]."""
        sizes, flat = [self._model.kv_heads, 1, self._model.head_dim, self._model.head_dim], [1, 1, 1, 1]
        sizes[axis] = flat[axis] = branch.rows
        return self.op("Expand", [self.reshape(columns, *flat), self.integers(*sizes)])


# 65535 says 0 and 0 says what float masks say of a hidden column.
MASK_CODES = Encoding("uint16", -FLOATS["float32"] / 65535, 65535)


def build_fused_graph(
    plan: GraphPlan, packed: PackedPart, network: Network, lowering: Lowering, dtype: str, has_mask_codes: bool
) -> FusedBuilder:
    """The nodes of one graph. Caches are called as in `bundle/fused.py`, fresh keys and values as in the row graph.
    has_mask_codes: the mask comes as 0 and 65535 and is made numbers in the graph; otherwise it has the dtype."""
    assert plan.shape is not None and packed.table is not None and packed.head is not None and packed.final_norm
    graph, shape, half = FusedBuilder(dtype, plan.shape), fused_shape(plan.name), network.spec.rope.rotary_dim // 2
    graph.add_input("input_ids", "int32", 1, "rows")
    for name in PLAIN_TABLES:
        graph.add_input(name, dtype, 1, 1, "rows", half)
    mask = _add_mask(graph, has_mask_codes)
    writer = FusedLayerWriter(graph, lowering, network, fused=graph, shape=shape, mask=mask)
    x = embed(graph, "input_ids", packed.table)
    for index, layer in zip(plan.part.layers, packed.layers, strict=True):
        x = writer.layer(x, layer, index)
    if shape.logit_rows < shape.rows:  # only those whose logits are read: the prompt's last one and every decode
        x = graph.cut(x, 1, shape.rows - shape.logit_rows, shape.rows)
    graph.narrow(shape.logit_rows)
    logits = linear(graph, writer.norm(x, graph.parameter(packed.final_norm)), packed.head)
    graph.give(logits, "logits", dtype, 1, shape.logit_rows, network.spec.vocab)
    return graph


def _add_mask(graph: GraphBuilder, has_codes: bool) -> str:
    """Declare the mask; the value to add to scores."""
    if not has_codes:
        return graph.add_input(MASK, str(graph.dtype), 1, 1, "rows", "context")
    graph.add_input(MASK, MASK_CODES.dtype, 1, 1, "rows", "context")
    graph.inputs[-1] = coded_as(graph.inputs[-1], MASK_CODES)
    scale = graph.constant(np.array(MASK_CODES.scale, np.float32))
    return graph.op("DequantizeLinear", [MASK, scale, graph.constant(np.array(MASK_CODES.zero_point, np.uint16))])


def finish(
    written: WrittenGraph, model_spec: ModelSpec, shape: FusedShape, fused: FusedSpec, has_pairs: bool
) -> WrittenGraph:
    """Give fresh keys and values their names, and where caches are updated by the graph add them and the control.
    has_pairs: see `CacheUpdater`."""
    model = onnx.ModelProto()
    model.CopyFrom(written.model)
    names = {
        f"past_{side}_{layer}_out": name
        for layer in range(model_spec.layers)
        for side, name in zip(("key", "value"), fresh_tensors(layer), strict=True)
    }
    rename(model.graph.node, names)
    inputs, outputs = (
        written.inputs,
        tuple(msgspec.structs.replace(each, name=names.get(each.name, each.name)) for each in written.outputs),
    )
    if fused.kv_update_on_device:
        inputs = (*inputs, TensorSpec(CONTROL, "int32", (CONTROL_HEAD + shape.slots,)))
        outputs = (*outputs, *CacheUpdater(model_spec, shape, fused.past, has_pairs).add_to(model.graph, inputs))
    by_name = {tensor.name: tensor for tensor in inputs}
    inputs = tuple(by_name[name] for name in input_order(shape, model_spec.layers) if name in by_name)
    # Logits first, as the contract has them; then fresh keys and values, then caches.
    outputs = tuple(sorted(outputs, key=lambda tensor: (tensor.name != "logits", tensor.name.startswith("updated"))))
    replace_all(model.graph.input, map(value_info, inputs))
    replace_all(model.graph.output, map(value_info, outputs))
    return WrittenGraph(model, inputs, outputs)


def fused_graph(work: Compilation, plan: GraphPlan) -> WrittenGraph:
    """One graph; all of them read the same weights. CompileError when an activation was never calibrated."""
    pipeline = work.pipeline
    is_integer = method_of(work.arguments).activations is Activations.INTEGER
    has_mask_codes = pipeline.dtype == "float32" and not is_integer  # an integer graph's mask becomes codes by itself
    graph = build_fused_graph(plan, work.packed[0], work.network, pipeline.lowering, pipeline.dtype, has_mask_codes)
    written, shape = graph.written(plan.name), fused_shape(plan.name)
    if is_integer:
        prepared = prepare(work.graph_folder, plan.part.number, written)
        written = IntegerRewriter(prepared, _encodings(work, plan, prepared, shape)).run()
    return finish(written, work.network.spec, shape, fused_spec(work.arguments), work.arguments.is_npu)


def _encodings(work: Compilation, plan: GraphPlan, graph: FloatGraph, shape: FusedShape) -> dict[str, Encoding]:
    """By key of the fused graph's activations."""
    caches = {
        name: f"past_{side}_{layer}_in"
        for layer in range(work.network.spec.layers)
        for cache in shape.caches
        for side, name in zip(("key", "value"), cache_tensors("past", cache, layer), strict=True)
    }
    found: dict[str, Encoding] = {}
    for name in graph.activations():
        twin = caches.get(name) or twin_of(name)
        # The row graph's own key: parts share the names on their borders only.
        encoding = work.encodings.get(twin) or work.encodings.get(f"{plan.part.number}/{twin}")
        if encoding is None:
            raise CompileError(f"activation {name} of {plan.name} was not calibrated as {twin.removesuffix(WIDE)}")
        found[graph.key(name)] = encoding
    return found
