"""Runs graphs that hold one sequence: what they carry in windows and states has no room for another one's.
To the scheduler every sequence has a cache of its own, and a step takes a run for each of them.
Legend: K = KV heads, D = head size, N = rows of a run, R = rows that need logits, V = vocabulary, P = past columns, W =
columns of a window."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.tensors import IN, KEYS, OUT, WINDOWS, Array, Carry, carried_inputs, carry_of, encoding_of
from engine.bundle.variant import ShapeTable, StepShape, shape_of
from engine.bundle.weight_files import read_head_weight
from engine.errors import BundleError, StepFailed
from engine.runtime.buffers import Arena, RotationTables, RowInputs, blank, layer_graphs
from engine.runtime.embedded import EmbeddedRows, open_tables
from engine.runtime.head import LmHead
from engine.runtime.interface import Logits, PackedBatch, PackedSegment, RowLayout, Runtime
from engine.runtime.sessions import Binding, Provider, bind_all, load_sessions


class CarriedState:
    """All that one sequence carries after `tokens` tokens, in the layout of one shape's graphs.
    A token's keys and values lie in past column `token`, and in window column `token` modulo W. bound: the graphs bound
    to this memory, dropped when it moves. began: tokens before the last step; said: the logits of its last row."""

    def __init__(self, specs: Mapping[str, TensorSpec], tokens: int = 0) -> None:
        self.tokens = self.began = tokens
        self.said: Logits | None = None
        self.arrays = {name: blank(spec) for name, spec in specs.items()}
        self.bound: list[Binding] = []
        self.bound_to: object = None

    def fits(self, specs: Mapping[str, TensorSpec]) -> bool:
        return all(self.arrays[name].shape == spec.shape for name, spec in specs.items())

    def lay_out(self, specs: Mapping[str, TensorSpec]) -> None:
        """Move to the layout of other graphs; tokens that their columns cannot hold are lost."""
        for name, spec in specs.items():
            old, carry = self.arrays[name], carry_of(name, IN)
            if old.shape == spec.shape:
                continue
            new = blank(spec)
            axis = 3 if carry in KEYS else 2
            before, after = old.shape[axis], new.shape[axis]
            kept = np.arange(min(before, after, self.tokens))
            if carry in WINDOWS:
                kept += self.tokens - len(kept)
            np.moveaxis(new, axis, 0)[kept % after] = np.moveaxis(old, axis, 0)[kept % before]
            self.arrays[name] = new
        self.bound, self.bound_to = [], None

    def take(self, fresh: Mapping[str, Array], count: int) -> None:
        """Carry on what a run gave for its last `count` rows, by the names of its outputs."""
        for name, array in self.arrays.items():
            given, carry = fresh[name.removesuffix(IN) + OUT], carry_of(name, IN)
            if carry is Carry.STATE:
                np.copyto(array, given)
                continue
            axis = 3 if carry in KEYS else 2
            width, first = array.shape[axis], given.shape[axis] - count
            tokens = np.arange(self.tokens, self.tokens + count)
            if carry in WINDOWS:
                tokens = tokens[-width:]
            columns, rows = tokens % width if carry in WINDOWS else tokens, tokens - self.tokens + first
            np.moveaxis(array, axis, 0)[columns] = np.moveaxis(given, axis, 0)[rows]
        self.tokens += count


@dataclass(slots=True)
class _Shape:
    """The graphs of one shape in running order, what they share between runs, and what they carry."""

    graphs: list[GraphSpec]
    inputs: RowInputs
    rows: dict[str, Array]  # row inputs by name
    fresh: dict[str, Array]  # outputs by name
    carried: dict[str, TensorSpec]
    result: TensorSpec | None


class SerialRuntime(Runtime):
    """For any provider. A sequence is known by its request's id; what it carries goes when the request ends.
    Raises BundleError when a graph cannot be loaded."""

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, provider: Provider) -> None:
        super().__init__(shapes, provider.device)
        self._manifest = manifest
        self._tables = open_tables(folder, manifest)
        self._sessions = load_sessions(folder, manifest, provider)
        self._arena = Arena()
        self._head = LmHead(manifest, self._sessions, self._arena, read_head_weight(folder, manifest))
        self._rotary = RotationTables(manifest.model)
        found = {shape for graph in manifest.graphs if (shape := shape_of(graph)) is not None}
        self._shapes = {shape: self._open(shape) for shape in sorted(found)}
        with_result = [shape for shape, opened in self._shapes.items() if opened.result is not None]
        self._widest = max(with_result, key=lambda shape: (shape.past, -shape.rows))
        self._states: dict[str, CarriedState] = {}
        self._spoiled: set[int] = set()

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [R, V], sequence after sequence. StepFailed for a sequence whose state is not where its rows begin."""
        self._parts.begin()
        self._spoiled = set()
        found: list[Logits] = []
        for segment in batch.segments:
            wanted = batch.logit_rows[(batch.logit_rows >= segment.start) & (batch.logit_rows < segment.end)]
            found += self._run_segment(batch, segment, wanted - segment.start)
        return Logits.joined(found) if found else Logits.of(np.empty((0, self._manifest.row_outputs), np.float32))

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] whose runs gave keys, values or states with infinity or NaN."""
        return rows[np.isin(rows, list(self._spoiled))]

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Nothing: what a run gives is carried on at once, as all rows of a sequence count or none."""

    def forget_states(self, sequences: Collection[str], snapshots: Collection[bytes]) -> None:
        for owner in sequences:
            self._states.pop(owner, None)

    def close(self) -> None:
        self._states.clear()
        self._head.clear()
        self._shapes.clear()
        self._arena.clear()
        self._sessions.clear()

    def _run_segment(self, batch: PackedBatch, segment: PackedSegment, wanted: NDArray[np.int64]) -> list[Logits]:
        """Logits of the wanted rows of one sequence, in as many runs as its rows take."""
        state = self._state_of(segment)
        done = max(0, min(state.tokens - segment.past, segment.count))  # read already, but nobody sampled
        found = [state.said] if state.said is not None and (wanted < done).any() else []
        if not done:
            state.began = state.tokens
        while done < segment.count:
            left = segment.count - done
            shape = self._shape_for(left, state.tokens, needs_logits=bool((wanted >= done).any()))
            count = min(left, shape.rows)
            rows = wanted[(wanted >= done) & (wanted < done + count)] - done + shape.rows - count
            span = slice(segment.start + done, segment.start + done + count)
            if (logits := self._run_rows(state, shape, batch, span, rows)) is not None:
                found.append(logits)
            state.said = logits and logits.rows(len(logits) - 1, len(logits))
            done += count
        return found

    def _state_of(self, segment: PackedSegment) -> CarriedState:
        if not segment.owner:  # timing: nobody has computed the past
            return CarriedState(self._shapes[self._widest].carried, min(segment.past, self._widest.past))
        if not segment.past:
            shape = self._shape_for(segment.count, 0, needs_logits=False)
            self._states[segment.owner] = CarriedState(self._shapes[shape].carried)
        state = self._states.get(segment.owner)
        if state is None or not (state.began <= segment.past <= state.tokens):
            raise StepFailed(f"{segment.owner} has no state of its first {segment.past} tokens")
        return state

    def _shape_for(self, rows: int, past: int, needs_logits: bool) -> StepShape:
        """The fewest rows that take all, else the most; with one shape for every step, always that of fewest rows."""
        able = (shape for shape, opened in self._shapes.items() if opened.result is not None or not needs_logits)
        fitting = [shape for shape in able if shape.past >= past]
        if not fitting:
            raise StepFailed(f"{past} tokens are more than the {self._widest.past} KV slots of the widest graph")
        if self.shapes.fixed:
            return self._widest
        enough = (shape for shape in fitting if shape.rows >= rows)
        return min(enough, default=max(fitting, key=lambda shape: (shape.rows, -shape.past)))

    def _run_rows(
        self, state: CarriedState, shape: StepShape, batch: PackedBatch, span: slice, logit_rows: NDArray[np.int64]
    ) -> Logits | None:
        opened, count, embedded = self._shapes[shape], span.stop - span.start, batch.embedded
        layout = RowLayout(shape, count)
        first = layout.add(batch.input_ids[span], state.tokens, (0,), state.tokens)
        if embedded is not None:
            inside = (embedded.rows >= span.start) & (embedded.rows < span.stop)
            rows, values = embedded.rows[inside] - span.start + first, embedded.values[inside]
            embedded = EmbeddedRows(rows, values) if len(rows) else None
        opened.inputs.fill(layout.batch(max(1, shape.past), embedded=embedded), self._rotary)
        self._parts.mark("inputs")
        for bound in self._bound(state, shape):
            bound.run()
        self._parts.mark("layers")
        if not _is_finite(opened.fresh, count):
            self._spoiled.update(range(span.start, span.stop))
        logits = self._logits(opened, logit_rows) if len(logit_rows) else None
        if state.tokens + count > shape.past and shape != self._widest:
            state.lay_out(self._shapes[self._widest].carried)
        if count <= self._widest.past - state.tokens:  # beyond it nothing can follow
            state.take(opened.fresh, count)
        self._parts.mark("carry")
        return logits

    def _logits(self, opened: _Shape, rows: NDArray[np.int64]) -> Logits:
        assert opened.result is not None, "logits of a shape that gives none"
        output = opened.fresh[opened.result.name]
        if self._head:
            logits = self._head.logits(output[0, rows], 1)
            return Logits(logits.codes.copy(), logits.encoding)
        return Logits(output[0, rows], encoding_of(opened.result))

    def _bound(self, state: CarriedState, shape: StepShape) -> list[Binding]:
        opened = self._shapes[shape]
        if not state.fits(opened.carried):
            state.lay_out(opened.carried)
        if state.bound_to != shape:
            state.bound = [self._bind(graph, opened, state) for graph in opened.graphs]
            state.bound_to = shape
        return state.bound

    def _bind(self, graph: GraphSpec, opened: _Shape, state: CarriedState) -> Binding:
        inputs: dict[str, Array] = {}
        for tensor in graph.inputs:
            array = opened.rows.get(tensor.name)
            array = state.arrays.get(tensor.name) if array is None else array
            array = opened.fresh.get(tensor.name) if array is None else array
            if array is None:
                raise BundleError(f"graph {graph.name} has the input {tensor.name}, which nothing provides")
            inputs[tensor.name] = array
        outputs = {tensor.name: opened.fresh[tensor.name] for tensor in graph.outputs}
        return bind_all(graph.name, self._sessions[graph.name], inputs, outputs)

    def _open(self, shape: StepShape) -> _Shape:
        graphs = layer_graphs(self._manifest, shape)
        # States pass padding by.
        inputs = RowInputs(self._arena, self._manifest, shape, self._tables, padding_sees=False)
        tensors = {tensor.name: tensor for graph in graphs for tensor in graph.inputs}
        rows = {name: array for name, tensor in tensors.items() if (array := inputs.buffer(tensor)) is not None}
        fresh: dict[str, Array] = {}
        for tensor in (tensor for graph in graphs for tensor in graph.outputs):
            form = tuple(int(dim) for dim in tensor.shape)
            fresh[tensor.name] = self._arena.array(f"fresh {tensor.name}", form, np.dtype(tensor.dtype))
        others = [tensor for tensor in graphs[-1].outputs if carry_of(tensor.name, OUT) is None]
        kv_only = graphs[-1].kind is GraphKind.DECODER_PREFILL
        return _Shape(graphs, inputs, rows, fresh, carried_inputs(graphs), None if kv_only else others[-1])


def _is_finite(fresh: dict[str, Array], count: int) -> bool:
    """Whether what a run carries on is finite; integers always are."""
    for name, array in fresh.items():
        carry = carry_of(name, OUT)
        if carry is None or array.dtype.kind != "f":
            continue
        if carry in KEYS:
            array = array[..., -count:]  # noqa: PLW2901
        elif carry is not Carry.STATE:
            array = array[..., -count:, :]  # noqa: PLW2901
        if not np.isfinite(array.sum(dtype=np.float64)):
            return False
    return True
