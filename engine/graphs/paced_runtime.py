"""A runtime that computes nothing: what the host does for a pass is real, where an NPU would compute it sleeps.

Pools, packing, writes and logits have the sizes and types of the model; logits, keys and values are noise, made once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Encoding, encoding_of
from engine.bundle.manifest import GraphKind, Manifest
from engine.bundle.tensor_names import is_scatter
from engine.bundle.variant import PassShape, ShapeTable
from engine.errors import BundleError
from engine.graphs.batch import PackedBatch
from engine.graphs.buffers import Arena, Fresh, RowInputs
from engine.graphs.layout import layer_graphs
from engine.graphs.logits import Logits
from engine.graphs.noise import NOISE_ROWS, noise_logits
from engine.graphs.past_pools import PastPools
from engine.graphs.rotary import RotaryTable

STRIDE = 7  # rows of noise between one pass and the next


@dataclass(frozen=True, slots=True)
class Pace:
    """What is kept to: `title` of the device and model, and the milliseconds of every shape.

    clock and sleep are in seconds; sleeping lets go of the GIL, as running a graph does.
    """

    title: str
    milliseconds: Mapping[PassShape, float]
    clock: Callable[[], float]
    sleep: Callable[[float], None]


class PacedRuntime:
    """Implements `Runtime` for the shapes that have a pace."""

    def __init__(self, manifest: Manifest, shapes: ShapeTable, pools: int, pace: Pace) -> None:
        self._manifest = manifest
        self._shapes = shapes
        self._pace = pace
        self._scatter = is_scatter(manifest.graphs)
        self._arena = Arena()
        self._passes: dict[PassShape, tuple[RowInputs, Fresh]] = {}
        self._rotary: dict[tuple[bool, Encoding], RotaryTable] = {}
        self._last: Fresh | None = None
        self._encoding = _logits_encoding(manifest)
        self._noise = noise_logits(manifest.model.vocab, self._encoding, manifest.text.stop_ids)
        self._next = 0
        self._pools = PastPools(manifest, shapes, pools, self._width(min(shapes.fixed, key=lambda shape: shape.past)))
        for shape in sorted((*shapes.fixed, *shapes.prefill), key=lambda shape: -shape.rows):
            self._passes[shape] = self._new_pass(shape)

    @property
    def shapes(self) -> ShapeTable:
        """The shapes given."""
        return self._shapes

    @property
    def device(self) -> str:
        """Whose pass times are kept."""
        return f"paced {self._pace.title}: answers are noise"

    @property
    def restrides(self) -> int:
        """How often a pool was re-laid for another width."""
        return self._pools.restrides

    def lay_out(self, pool: int, shape: PassShape) -> None:
        """Give the pool the width that the shape's graphs would bind."""
        self._pools.set_width(pool, self._width(shape))

    def run(self, batch: PackedBatch) -> Logits:
        """Fill the row inputs and sleep; logits [R, V] of noise, other rows than those of the last pass."""
        self.lay_out(batch.pool, batch.shape)
        inputs, self._last = self._passes[batch.shape]
        inputs.fill(batch, self._rotary)
        began = self._pace.clock()
        rows = self._noise_rows(len(batch.logit_rows))
        left_s = began + self._pace.milliseconds[batch.shape] / 1000.0 - self._pace.clock()
        if left_s > 0:
            self._pace.sleep(left_s)
        return rows

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """None in integer caches."""
        assert self._last is not None, "non_finite_rows before run"
        return self._last.non_finite(rows)

    def keep(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Copy the noise of `rows` [M] into `columns` [M], all layers."""
        assert self._last is not None, "keep before run"
        self._pools.widen(pool, int(columns.max(initial=-1)) + 1)
        self._pools.keep(pool, self._last, rows, columns)

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the keys and values of a page's columns to host memory."""
        self._pools.offload(pool, columns, key)

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy an offloaded page into `columns`."""
        self._pools.widen(pool, columns.stop)
        self._pools.load(pool, columns, key)

    def evict(self, key: bytes) -> None:
        """Forget the copy in host memory."""
        self._pools.evict(key)

    def free(self, pool: int, pages: Collection[int]) -> None:
        """The pools keep their size."""

    def close(self) -> None:
        """Let go of the memory."""
        self._passes.clear()
        self._last = None
        self._arena.clear()
        self._pools.clear()

    def _width(self, shape: PassShape) -> int:
        """Columns of the past buffers a shape would bind, as in `onnx_runtime`."""
        return shape.context if self._scatter else shape.past

    def _new_pass(self, shape: PassShape) -> tuple[RowInputs, Fresh]:
        graphs = layer_graphs(self._manifest, shape)
        inputs, fresh = (
            RowInputs(self._arena, self._manifest, shape),
            Fresh(self._arena, self._manifest, graphs, shape.rows),
        )
        for graph in graphs:
            for tensor in graph.inputs:
                inputs.buffer(tensor)
        source = np.random.default_rng(shape.rows)
        for array in (fresh.keys, fresh.values):
            array[...] = source.integers(0, 256, array.shape, np.uint8).astype(array.dtype)
        return inputs, fresh

    def _noise_rows(self, count: int) -> Logits:
        """`count` rows, without a copy unless there are more than were made."""
        self._next = (self._next + STRIDE) % NOISE_ROWS
        if count > NOISE_ROWS:
            return Logits(np.resize(self._noise, (count, self._noise.shape[1])), self._encoding)
        start = self._next % (NOISE_ROWS - count + 1)
        return Logits(self._noise[start : start + count], self._encoding)


def _logits_encoding(manifest: Manifest) -> Encoding:
    """How the graphs of a manifest give logits; BundleError when none does."""
    kinds = (GraphKind.LMHEAD, GraphKind.DEFAULT, GraphKind.DECODER)
    for kind in kinds:
        for graph in manifest.graphs:
            if graph.kind is kind and graph.outputs and graph.outputs[-1].shape[-1] == manifest.model.vocab:
                return encoding_of(graph.outputs[-1])
    raise BundleError("the bundle has no graph that gives logits")
