"""A runtime that computes nothing: what the host does for a pass is real, where an NPU would compute it sleeps.

Pools, packing, writes and logits have the sizes and types of the model; logits, keys and values are noise, made once.
Parts end when those of the bundle would, in proportion to their weights, and their keys and values are written while
others run, as `onnx_runtime` does.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Encoding, encoding_of
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, ModelSpec
from engine.bundle.tensor_names import is_scatter
from engine.bundle.variant import PassShape, ShapeTable
from engine.errors import BundleError
from engine.graphs.batch import PackedBatch
from engine.graphs.buffers import Arena, Fresh, RowInputs
from engine.graphs.early_writes import EarlyWrites
from engine.graphs.layout import layer_graphs, layers_of
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


@dataclass(frozen=True, slots=True)
class _Pass:
    """Buffers of a shape, and for each part the share of the pass's time after which its layers are computed."""

    inputs: RowInputs
    fresh: Fresh
    parts: tuple[tuple[float, slice], ...]


class PacedRuntime:
    """Implements `Runtime` for the shapes that have a pace."""

    def __init__(self, manifest: Manifest, shapes: ShapeTable, pools: int, pace: Pace) -> None:
        self._manifest = manifest
        self._shapes = shapes
        self._pace = pace
        self._scatter = is_scatter(manifest.graphs)
        self._arena = Arena()
        self._passes: dict[PassShape, _Pass] = {}
        self._rotary: dict[tuple[bool, Encoding], RotaryTable] = {}
        self._last: Fresh | None = None
        self._encoding = _logits_encoding(manifest)
        self._noise = noise_logits(manifest.model.vocab, self._encoding, manifest.text.stop_ids)
        self._next = 0
        self._pools = PastPools(manifest, shapes, pools, self._width(min(shapes.fixed, key=lambda shape: shape.past)))
        self._early = EarlyWrites(self._pools, lambda event: None)
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
        width = self._width(shape)
        if self._pools[pool].width != width:
            self._early.finish()
            self._pools.set_width(pool, width)

    def run(self, batch: PackedBatch) -> Logits:
        """Fill the row inputs and sleep; logits [R, V] of noise, other rows than those of the last pass."""
        self.lay_out(batch.pool, batch.shape)
        run = self._passes[batch.shape]
        run.inputs.fill(batch, self._rotary)
        self._last = run.fresh
        rows = self._noise_rows(len(batch.logit_rows))
        self._early.begin()
        began, whole_s = self._pace.clock(), self._pace.milliseconds[batch.shape] / 1000.0
        for share, layers in run.parts:
            ready = self._pace.clock()
            self._early.part_begins(run.fresh, layers)
            began += self._pace.clock() - ready  # a part takes its time from when it may run
            left_s = began + share * whole_s - self._pace.clock()
            if left_s > 0:
                self._pace.sleep(left_s)
            self._early.part_done(run.fresh, layers)
        self._early.end()
        return rows

    def expect(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Write `rows` [M] of the next pass into `columns` [M] as soon as their part would have run."""
        self._early.expect(pool, rows, columns)

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """None in integer caches."""
        assert self._last is not None, "non_finite_rows before run"
        return self._last.non_finite(rows)

    def keep(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Copy the noise of `rows` [M] into `columns` [M], all layers."""
        assert self._last is not None, "keep before run"
        rows, columns = self._early.left(rows, columns)
        if not len(rows):
            return
        self._pools.widen(pool, int(columns.max(initial=-1)) + 1)
        self._pools.keep(pool, self._last, rows, columns)

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the keys and values of a page's columns to host memory, while the next pass runs."""
        self._early.move(partial(self._pools.offload, pool, columns, key))

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy an offloaded page into `columns`."""
        self._early.finish()
        self._pools.widen(pool, columns.stop)
        self._pools.load(pool, columns, key)

    def evict(self, key: bytes) -> None:
        """Forget the copy in host memory."""
        self._early.move(partial(self._pools.evict, key))

    def free(self, pool: int, pages: Collection[int]) -> None:
        """The pools keep their size."""

    def close(self) -> None:
        """Let go of the memory."""
        self._early.close()
        self._passes.clear()
        self._last = None
        self._arena.clear()
        self._pools.clear()

    def _width(self, shape: PassShape) -> int:
        """Columns of the past buffers a shape would bind, as in `onnx_runtime`."""
        return shape.context if self._scatter else shape.past

    def _new_pass(self, shape: PassShape) -> _Pass:
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
        return _Pass(inputs, fresh, _parts(self._manifest.model, graphs))

    def _noise_rows(self, count: int) -> Logits:
        """`count` rows, without a copy unless there are more than were made."""
        self._next = (self._next + STRIDE) % NOISE_ROWS
        if count > NOISE_ROWS:
            return Logits(np.resize(self._noise, (count, self._noise.shape[1])), self._encoding)
        start = self._next % (NOISE_ROWS - count + 1)
        return Logits(self._noise[start : start + count], self._encoding)


def _parts(model: ModelSpec, graphs: Sequence[GraphSpec]) -> tuple[tuple[float, slice], ...]:
    """For each part when its layers are computed, as a share of the pass, and which those are.

    A part takes time in proportion to its weights; the head's are in the last, as in the bundles of AI Hub.
    """
    attention = 2 * model.hidden * model.head_dim * (model.heads + model.kv_heads)
    layer = attention + 3 * model.hidden * model.ffn
    layers = [layers_of(graph) for graph in graphs]
    weights = [layer * (part.stop - part.start) for part in layers]
    weights[-1] += model.hidden * model.vocab
    return tuple(zip((done / sum(weights) for done in accumulate(weights)), layers, strict=True))


def _logits_encoding(manifest: Manifest) -> Encoding:
    """How the graphs of a manifest give logits; BundleError when none does."""
    kinds = (GraphKind.LMHEAD, GraphKind.DEFAULT, GraphKind.DECODER)
    for kind in kinds:
        for graph in manifest.graphs:
            if graph.kind is kind and graph.outputs and graph.outputs[-1].shape[-1] == manifest.model.vocab:
                return encoding_of(graph.outputs[-1])
    raise BundleError("the bundle has no graph that gives logits")
