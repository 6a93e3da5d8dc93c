"""Runs a bundle's ONNX graphs with onnxruntime, on whatever provider opens them, and owns the pool's bytes."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.tensors import Array, Encoding, embedding_of, encoding_of, is_scatter, place_of
from engine.bundle.variant import ShapeTable, StepShape
from engine.bundle.weight_files import ForecastPrefix, read_head_weight, weight_input
from engine.config import CPU_DEVICE
from engine.errors import BundleError, StepFailed
from engine.runtime.buffers import Arena, Fresh, RotationTables, RowInputs, layer_graphs, layers_of
from engine.runtime.embedded import open_tables
from engine.runtime.head import LmHead
from engine.runtime.interface import BlockStore, Indices, Logits, PackedBatch, Runtime
from engine.runtime.pools import KvWrites, PastPool
from engine.runtime.sessions import Binding, Provider, bind_all, load_sessions

KEPT_SHAPES = 64
NO_LAYERS = slice(0, 0)
NO_ROWS = np.zeros(0, np.int64), np.zeros(0, np.int64)


@dataclass(slots=True)
class _BoundShape:
    """Everything a shape needs to run over the pool: row inputs, outputs, and the bound parts with their layers.
    output: the last part's, with its encoding; None where keys and values are all that the graphs give. embedding: of
    the first part where that is all it does."""

    inputs: RowInputs
    fresh: Fresh
    parts: list[tuple[Binding, slice]]
    output: tuple[Array, Encoding] | None
    embedding: tuple[Array, Encoding] | None = None


class OnnxRuntime(Runtime, BlockStore):
    """For any provider, free or fixed shapes, any split, float or quantised tensors.
    Keys and values are never converted: a graph's outputs are copied to its inputs as they are. Raises BundleError when
    a graph cannot be loaded."""

    stores_blocks = True

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, provider: Provider) -> None:
        super().__init__(shapes, provider.device)
        self.blocks = self
        self._manifest = manifest
        self._tables = open_tables(folder, manifest)
        self._sessions = load_sessions(folder, manifest, provider)
        self._scatter = is_scatter(manifest.graphs)
        # Sole owner of pool, bound shapes and scratch; `_steps` is empty after the pool's columns were replaced.
        start = shapes.past_step if shapes.free else self._width(min(shapes.fixed, key=lambda shape: shape.past))
        self._pool = PastPool(manifest, start)
        if self._pool.windows is not None:
            self.window = max(manifest.model.layer_windows)
        self._writes = KvWrites(self._pool)
        # A CPU that computes floats has no time to spare for copies.
        self._writes_beside = provider.device != CPU_DEVICE or np.dtype(manifest.kv_dtype).kind != "f"
        self._arena = Arena()
        self._head = LmHead(manifest, self._sessions, self._arena, read_head_weight(folder, manifest))
        self._rotary = RotationTables(manifest.model)
        self._steps: dict[StepShape, _BoundShape] = {}
        self._last: _BoundShape | None = None

    @property
    def relayouts(self) -> int:
        return self._pool.relayouts

    def lay_out(self, shape: StepShape) -> None:
        """Give the pool the width that the shape's graphs bind, and bind them to it; nothing when that is so."""
        self._set_width(self._width(shape))
        self._bind(shape)

    def run(self, batch: PackedBatch) -> Logits:
        self._set_width(self._width(batch.shape))
        bound = self._bind(batch.shape)
        self._parts.begin()
        bound.inputs.fill(batch, self._rotary)
        self._last = bound
        self._parts.mark("inputs")
        self._writes.begin(*(batch.early_rows() if self._writes_beside else NO_ROWS))
        try:
            self._run_parts(bound, batch)
            self._parts.mark("layers")
            if self._head:
                self._writes.part_begins(bound.fresh, NO_LAYERS)
            logits = self._logits(bound, batch.logit_rows)
        except StepFailed:
            self._writes.finish()  # what was written of the step by then, nothing shows
            raise
        self._parts.mark("head")
        return logits

    def _run_parts(self, bound: _BoundShape, batch: PackedBatch) -> None:
        for number, (part, layers) in enumerate(bound.parts, 1):
            self._writes.part_begins(bound.fresh, layers)
            part.run()
            if number == 1 and batch.embedded is not None and not self._tables:
                if bound.embedding is None:
                    raise StepFailed("its graphs take token ids, not embeddings")
                batch.embedded.write(*bound.embedding)
            self._writes.part_done(bound.fresh, layers)
        self._writes.end()

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        assert self._last is not None, "non_finite_rows before run"
        return self._last.fresh.non_finite(rows)

    def keep(self, rows: Indices, slots: Indices) -> None:
        assert self._last is not None, "keep before run"
        rows, slots = self._writes.left(rows, slots)
        if not len(rows):
            return
        self._widen(int(slots.max()) + 1)
        self._writes.write(self._last.fresh, rows, slots, self._writes_beside)

    def load_prefix(self, prefix: ForecastPrefix) -> None:
        """Let the first columns be those that forecast rows see; nobody else may write there."""
        self._widen(prefix.columns)
        self._pool.write_first(prefix.keys, prefix.values)

    def free(self, blocks: Collection[int]) -> None:
        self.free_behind(blocks)

    def free_behind(self, blocks: Collection[int]) -> None:
        if self._pool.windows is not None:
            self._pool.windows.forget(blocks)

    def offload(self, columns: slice, key: bytes) -> None:
        self._writes.move(partial(self._pool.offload, columns, key))

    def load(self, columns: slice, key: bytes) -> None:
        self._writes.finish()
        self._widen(columns.stop)
        self._pool.load(columns, key)

    def offloaded(self, key: bytes) -> bytes:
        self._writes.finish()
        return self._pool.offloaded(key)

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        self._writes.finish()
        self._pool.put_offloaded(key, content)

    def evict(self, key: bytes) -> None:
        self._writes.move(partial(self._pool.evict, key))

    def close(self) -> None:
        self._writes.close()
        self._steps.clear()
        self._last = None
        self._head.clear()
        self._arena.clear()
        self._pool.clear()
        self._sessions.clear()
        self.blocks = BlockStore()  # not itself: it would wait for the garbage collector

    def _width(self, shape: StepShape) -> int:
        return shape.context if self._scatter else shape.past

    def _widen(self, columns: int) -> None:
        if columns > self._pool.width:
            self._set_width(self.shapes.round_past(columns))

    def _set_width(self, width: int) -> None:
        if self._pool.width == width:
            return
        self._writes.finish()
        self._pool.set_width(width)
        self._steps.clear()  # bound to columns that were replaced

    def _bind(self, shape: StepShape) -> _BoundShape:
        if shape not in self._steps:
            if len(self._steps) >= KEPT_SHAPES:
                self._steps.pop(next(iter(self._steps)))
            self._steps[shape] = self._new_shape(shape)
        return self._steps[shape]

    def _new_shape(self, shape: StepShape) -> _BoundShape:
        graphs = layer_graphs(self._manifest, None if self._manifest.is_free_shape else shape)
        inputs = RowInputs(self._arena, self._manifest, shape, self._tables, windows=self._pool.windows)
        fresh = Fresh(self._arena, self._manifest, graphs, shape.rows)
        parts = [(self._bind_part(shape, graph, inputs, fresh), layers_of(graph)) for graph in graphs]
        first, last, output, embedding = graphs[0], graphs[-1], None, None
        if first.kind is GraphKind.LUT:
            embedding = fresh.others[embedding_of(first).name], encoding_of(embedding_of(first))
        if last.kind is not GraphKind.DECODER_PREFILL:
            assert fresh.last is not None, "a decoder has an output beside its KV"
            # Hidden states are passed on raw, so only logits need their scale.
            is_raw = last.kind is not GraphKind.DEFAULT and not fresh.last.name.startswith("logits")
            encoding = Encoding(fresh.last.dtype) if is_raw else encoding_of(fresh.last)
            output = fresh.others[fresh.last.name], encoding
        return _BoundShape(inputs, fresh, parts, output, embedding)

    def _bind_part(self, shape: StepShape, graph: GraphSpec, inputs: RowInputs, fresh: Fresh) -> Binding:
        taken, given = dict[str, Array](), dict[str, Array]()
        for tensor in graph.inputs:
            place = place_of(tensor.name, "_in")
            array = inputs.buffer(tensor) if place is None else self._pool.past(place)
            array = self._head.weight if tensor is weight_input(graph) else array
            array = fresh.others.get(tensor.name) if array is None else array
            if array is None:
                raise BundleError(f"graph {graph.name} has the input {tensor.name}, which nothing provides")
            taken[tensor.name] = array
        for tensor in graph.outputs:
            place = place_of(tensor.name, "_out")
            given[tensor.name] = fresh.others[tensor.name] if place is None else place.of(fresh.keys, fresh.values)
        name = f"{graph.name} as {shape}" if self._manifest.is_free_shape else graph.name
        return bind_all(name, self._sessions[graph.name], taken, given)

    def _logits(self, bound: _BoundShape, rows: NDArray[np.int64]) -> Logits:
        """Rows [R, V] of the last part's output, through the head graph when there is one."""
        if not len(rows):
            return Logits.of(np.empty((0, self._manifest.row_outputs), np.float32))
        assert bound.output is not None, "logits of a shape that gives none"
        output, encoding = bound.output
        # One shape for every step means one head for every step.
        least = self.shapes.max_rows if self.shapes.has_one_shape else 1
        return self._head.logits(output[0, rows], least) if self._head else Logits(output[0, rows], encoding)
