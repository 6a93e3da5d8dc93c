"""Runs a bundle's ONNX graphs with onnxruntime, on whatever provider opens them, and owns the pools' bytes."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.embedding_input import embedding_of
from engine.bundle.encoding import Array, Encoding, encoding_of
from engine.bundle.forecast_prefix import ForecastPrefix
from engine.bundle.head_weight import read_head_weight, weight_input
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.tensor_names import is_scatter, place_of
from engine.bundle.variant import PassShape, ShapeTable
from engine.embeddings.rows import EmbeddedRows
from engine.errors import BundleError, PassFailed
from engine.graphs.batch import PackedBatch
from engine.graphs.buffers import Arena, Fresh, Pool, RowInputs
from engine.graphs.early_writes import EarlyWrites
from engine.graphs.layout import layer_graphs, layers_of
from engine.graphs.logits import Logits
from engine.graphs.onnx_binding import Binding, bind
from engine.graphs.onnx_head import LmHead
from engine.graphs.onnx_sessions import CPU_DEVICE, Provider, load_sessions
from engine.graphs.past_pools import PastPools
from engine.graphs.rotary import RotaryTable
from engine.graphs.stage_clock import StageClock

KEPT_PASSES = 64
NO_LAYERS = slice(0, 0)


@dataclass(slots=True)
class _Pass:
    """Everything a shape needs to run over one pool: row inputs, outputs, and the bound parts with their layers.

    output: the last part's, with its encoding; None where keys and values are all that the graphs give. embedding: of
    the first part where that is all it does.
    """

    inputs: RowInputs
    fresh: Fresh
    parts: list[tuple[Binding, slice]]
    output: tuple[Array, Encoding] | None
    embedding: tuple[Array, Encoding] | None = None

    def embed(self, rows: EmbeddedRows) -> None:
        """Let rows be what they are given as, in the place of what the first part made of their ids."""
        if self.embedding is None:
            raise ValueError("its graphs take token ids, not embeddings")
        rows.write(*self.embedding)


class OnnxRuntime:
    """Implements `Runtime` for any provider, free or fixed shapes, any split, float or quantised tensors.

    Keys and values are never converted: a graph's outputs are copied to its inputs as they are. observe: is told when
    parts run and caches are written, from the threads that do it.
    Raises BundleError when a graph cannot be loaded.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        shapes: ShapeTable,
        pools: int,
        provider: Provider,
        observe: Callable[[str], None] = lambda event: None,
    ) -> None:
        self._manifest = manifest
        self._shapes = shapes
        self._device = provider.device
        self._sessions = load_sessions(folder, manifest, provider)
        self._scatter = is_scatter(manifest.graphs)
        # Sole owner of pools, bound passes and scratch; `_passes` loses those of a pool that is replaced.
        start = shapes.past_step if shapes.free else self._width(min(shapes.fixed, key=lambda shape: shape.past))
        self._pools = PastPools(manifest, shapes, pools, start)
        self._observe = observe
        self._early = EarlyWrites(self._pools, observe)
        # A CPU that computes floats has no time to spare for copies.
        self._writes_early = provider.device != CPU_DEVICE or np.dtype(manifest.kv_dtype).kind != "f"
        self._arena = Arena()
        self._head_weight = read_head_weight(folder, manifest)
        self._head = LmHead(manifest, self._sessions, self._arena, self._head_weight)
        self._rotary: dict[tuple[bool, Encoding], RotaryTable] = {}
        self._passes: dict[tuple[int, PassShape], _Pass] = {}
        self._last: _Pass | None = None
        self._parts = StageClock()

    @property
    def shapes(self) -> ShapeTable:
        """The shapes given."""
        return self._shapes

    @property
    def device(self) -> str:
        """What the provider says it computes on."""
        return self._device

    @property
    def restrides(self) -> int:
        """How often a pool was re-laid for another width."""
        return self._pools.restrides

    @property
    def part_seconds(self) -> Mapping[str, float]:
        """Seconds of filling inputs, of the layers, and of what follows: the head, decoding."""
        return self._parts.seconds

    def lay_out(self, pool: int, shape: PassShape) -> None:
        """Give the pool the width that the shape's graphs bind, and bind them to it; nothing when that is so."""
        self._set_width(pool, self._width(shape))
        self._bind(pool, shape)

    def run(self, batch: PackedBatch) -> Logits:
        """Run the parts in order; logits [R, V], valid until the next run. PassFailed when onnxruntime raises."""
        self._set_width(batch.pool, self._width(batch.shape))
        bound = self._bind(batch.pool, batch.shape)
        self._parts.begin()
        bound.inputs.fill(batch, self._rotary)
        self._last = bound
        self._parts.mark("inputs")
        self._early.begin()
        for number, (part, layers) in enumerate(bound.parts, 1):
            self._early.part_begins(bound.fresh, layers)
            with self._failing(batch.shape):
                self._observe(f"running part {number}")
                part.run()
                if number == 1 and batch.embedded is not None:
                    bound.embed(batch.embedded)
                self._observe(f"ran part {number}")
            self._early.part_done(bound.fresh, layers)
        self._early.end()
        self._parts.mark("layers")
        if self._head:
            self._early.part_begins(bound.fresh, NO_LAYERS)
        with self._failing(batch.shape):
            logits = self._logits(bound, batch.logit_rows)
        self._parts.mark("head")
        return logits

    def expect(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Write `rows` [M] of the next pass into `columns` [M] as soon as their part has run."""
        if self._writes_early:
            self._early.expect(pool, rows, columns)

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] whose fresh keys or values hold infinity or NaN; integers cannot."""
        assert self._last is not None, "non_finite_rows before run"
        return self._last.fresh.non_finite(rows)

    def keep(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Copy the last pass's fresh KV of `rows` [M] into `columns` [M], all layers at once."""
        assert self._last is not None, "keep before run"
        rows, columns = self._early.left(rows, columns)
        if not len(rows):
            return
        self._widen(pool, int(columns.max(initial=-1)) + 1)
        self._pools.keep(pool, self._last.fresh, rows, columns)

    def load_prefix(self, prefix: ForecastPrefix) -> None:
        """Let the first columns of every pool be those that forecast rows see; nobody else may write there."""
        for index in range(len(self._pools)):
            self._pools.widen(index, prefix.columns)
        self._pools.write_first(prefix.keys, prefix.values)

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the keys and values of a page's columns to host memory, while the next pass runs."""
        self._early.move(partial(self._pools.offload, pool, columns, key))

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy an offloaded page into `columns`."""
        self._widen(pool, columns.stop)
        self._pools.load(pool, columns, key)

    def offloaded(self, key: bytes) -> bytes:
        """A page in host memory as bytes."""
        self._early.finish()
        return self._pools.offloaded(key)

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        """Put a page into host memory."""
        self._early.finish()
        self._pools.put_offloaded(key, content)

    def evict(self, key: bytes) -> None:
        """Forget the copy in host memory."""
        self._early.move(partial(self._pools.evict, key))

    def free(self, pool: int, pages: Collection[int]) -> None:
        """Pools keep their columns, whatever is in them."""

    def close(self) -> None:
        """Drop bindings, then buffers, then sessions: a binding must not outlive what it points to."""
        self._early.close()
        self._passes.clear()
        self._last = None
        self._head.clear()
        self._arena.clear()
        self._pools.clear()
        self._sessions.clear()

    @contextmanager
    def _failing(self, shape: PassShape) -> Iterator[None]:
        """What goes wrong inside is PassFailed; what was written of the pass by then, nothing shows."""
        try:
            yield
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            self._early.finish()
            raise PassFailed(f"graph {shape} failed: {str(error)[:300]}") from error

    def _width(self, shape: PassShape) -> int:
        """Columns of the past buffers a shape binds: a scatter graph writes its fresh ones into them."""
        return shape.context if self._scatter else shape.past

    def _widen(self, pool: int, columns: int) -> None:
        self._early.finish()
        if self._pools.widen(pool, columns):
            self._unbind(pool)

    def _set_width(self, pool: int, width: int) -> None:
        if self._pools[pool].width == width:
            return
        self._early.finish()
        self._pools.set_width(pool, width)
        self._unbind(pool)

    def _unbind(self, pool: int) -> None:
        """The pool was replaced: what is bound to the one before is of no use."""
        self._passes = {key: value for key, value in self._passes.items() if key[0] != pool}

    def _bind(self, pool: int, shape: PassShape) -> _Pass:
        key = (pool, shape)
        found = self._passes.get(key)
        if found is None:
            if len(self._passes) >= KEPT_PASSES:
                self._passes.pop(next(iter(self._passes)))
            found = self._passes[key] = self._new_pass(pool, shape)
        return found

    def _new_pass(self, pool: int, shape: PassShape) -> _Pass:
        graphs = layer_graphs(self._manifest, None if self._manifest.is_free_shape else shape)
        inputs = RowInputs(self._arena, self._manifest, shape)
        fresh = Fresh(self._arena, self._manifest, graphs, shape.rows)
        parts = [(self._bind_part(graph, inputs, fresh, self._pools[pool]), layers_of(graph)) for graph in graphs]
        embedding = _embedding(graphs[0], fresh)
        if graphs[-1].kind is GraphKind.DECODER_PREFILL:
            return _Pass(inputs, fresh, parts, None, embedding)
        assert fresh.last is not None, "a decoder has an output beside its KV"
        output = fresh.others[fresh.last.name], _output_encoding(graphs[-1], fresh)
        return _Pass(inputs, fresh, parts, output, embedding)

    def _bind_part(self, graph: GraphSpec, inputs: RowInputs, fresh: Fresh, pool: Pool) -> Binding:
        session = self._sessions[graph.name]
        bound = Binding(session, session.io_binding(), [])
        for tensor in graph.inputs:
            place = place_of(tensor.name, "_in")
            array = inputs.buffer(tensor) if place is None else place.of(pool.keys, pool.values)
            array = self._head_weight if tensor is weight_input(graph) else array
            if array is None and tensor.name not in fresh.others:
                raise BundleError(f"graph {graph.name} has the input {tensor.name}, which nothing provides")
            bind(bound, bound.binding.bind_input, tensor.name, fresh.others[tensor.name] if array is None else array)
        for tensor in graph.outputs:
            place = place_of(tensor.name, "_out")
            array = fresh.others[tensor.name] if place is None else place.of(fresh.keys, fresh.values)
            bind(bound, bound.binding.bind_output, tensor.name, array)
        return bound

    def _logits(self, bound: _Pass, rows: NDArray[np.int64]) -> Logits:
        """Rows [R, V] of the last part's output, through the head graph when there is one."""
        if not len(rows):
            return Logits.of(np.empty((0, self._manifest.row_outputs), np.float32))
        assert bound.output is not None, "logits of a shape that gives none"
        output, encoding = bound.output
        # One shape for every pass means one head for every pass.
        least = self._shapes.max_rows if len(self._shapes.fixed) == 1 else 1
        return self._head.logits(output[0, rows], least) if self._head else Logits(output[0, rows], encoding)


def _embedding(graph: GraphSpec, fresh: Fresh) -> tuple[Array, Encoding] | None:
    """Where the hidden states of an embedding graph lie."""
    if graph.kind is not GraphKind.LUT:
        return None
    given = embedding_of(graph)
    return fresh.others[given.name], encoding_of(given)


def _output_encoding(graph: GraphSpec, fresh: Fresh) -> Encoding:
    """Encoding of a part's last output. Hidden states are passed on raw, so only logits need their scale."""
    assert fresh.last is not None
    raw = graph.kind is not GraphKind.DEFAULT and not fresh.last.name.startswith("logits")
    return Encoding(fresh.last.dtype) if raw else encoding_of(fresh.last)
