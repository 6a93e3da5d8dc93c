"""Runs a bundle's ONNX graphs with onnxruntime on the CPU provider, and owns the pools' bytes.

Legend: L = layers, K = KV heads, D = head size, P = past columns, N = rows, H = hidden size, V = vocabulary.
A pool is two arrays, keys [L, K, 1, D, P] and values [L, K, 1, P, D]; a graph binds each layer's slice in place.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.variant import PassShape, ShapeTable
from engine.errors import BundleError, PassFailed
from engine.graphs.batch import PackedBatch
from engine.graphs.layout import Array, layer_graphs, layer_slice, spans
from engine.graphs.onnx_sessions import load_sessions
from engine.graphs.rotary import RotaryTable

MASKED = np.float32(-1e30)
KEPT_PASSES = 64


@dataclass(slots=True)
class _Pool:
    """Past keys and values of one pool at its present width. Replaced as a whole when the width changes."""

    keys: Array
    values: Array

    @property
    def past(self) -> int:
        return int(self.values.shape[-2])


@dataclass(slots=True)
class _Fresh:
    """Output buffers of one row count: keys [L, K, 1, D, N], values [L, K, 1, N, D], hidden or logits of each part."""

    keys: Array
    values: Array
    hidden: dict[str, Array]


@dataclass(slots=True)
class _Binding:
    """One graph bound to fixed buffers, so that a pass allocates nothing."""

    session: ort.InferenceSession
    binding: ort.IOBinding


@dataclass(slots=True)
class _Pass:
    """Everything a shape needs to run over one pool: input buffers and the bound parts in order."""

    input_ids: NDArray[np.int32]
    mask: Array
    cos: Array
    sin: Array
    fresh: _Fresh
    parts: list[_Binding]
    output: Array


class OnnxRuntime:
    """Implements `Runtime` for float32 graphs on the CPU, free or fixed shape, with any split.

    `threads` 0 leaves the count to onnxruntime. Raises BundleError when a graph cannot be loaded.
    """

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, pools: int, threads: int = 0) -> None:
        if manifest.kv_dtype != "float32":
            raise BundleError(f"KV of type {manifest.kv_dtype} cannot run on the CPU provider")
        self._manifest = manifest
        self._shapes = shapes
        self._sessions = load_sessions(folder, manifest, threads)
        self._rotary = RotaryTable(manifest.model.rope)
        # Sole owner of pools, bound passes and scratch; `_passes` is cleared when a pool is replaced.
        start = shapes.past_step if shapes.free else min(shape.past for shape in shapes.fixed)
        self._pools = [_new_pool(manifest, start) for _ in range(pools)]
        self._arena = _Arena()
        self._passes: dict[tuple[int, PassShape], _Pass] = {}
        self._last: _Pass | None = None
        self._shelf: dict[bytes, tuple[Array, Array]] = {}
        self._restrides = 0

    @property
    def shapes(self) -> ShapeTable:
        """The shapes given."""
        return self._shapes

    @property
    def device(self) -> str:
        """Always the CPU."""
        return "CPU"

    @property
    def pool_bytes(self) -> int:
        """Bytes of all past keys and values as they are now."""
        return sum(pool.keys.nbytes + pool.values.nbytes for pool in self._pools)

    @property
    def restrides(self) -> int:
        """How often a pool was re-laid for another width."""
        return self._restrides

    def run(self, batch: PackedBatch) -> NDArray[np.float32]:
        """Run the parts in order; logits [R, V]. PassFailed when onnxruntime raises."""
        self._set_width(batch.pool, batch.shape.past)
        bound = self._bind(batch.pool, batch.shape)
        bound.input_ids[0] = batch.input_ids
        np.multiply(~batch.visible, MASKED, out=bound.mask[0, 0])
        self._rotary.fill(batch.positions, bound.cos[0, 0], bound.sin[0, 0])
        self._last = bound
        try:
            for part in bound.parts:
                part.session.run_with_iobinding(part.binding)
            return self._logits(bound.output, batch.logit_rows)
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise PassFailed(f"graph {batch.shape} failed: {str(error)[:300]}") from error

    def keep(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Copy the last pass's fresh KV of `rows` into `columns`, all layers at once."""
        assert self._last is not None, "keep before run"
        self._widen(pool, int(columns.max(initial=-1)) + 1)
        target, fresh = self._pools[pool], self._last.fresh
        for row_span, column_span in spans(rows, columns):
            target.keys[..., column_span] = fresh.keys[..., row_span]
            target.values[..., column_span, :] = fresh.values[..., row_span, :]

    def stow(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the KV of `columns` aside."""
        source = self._pools[pool]
        self._shelf[key] = (source.keys[..., columns].copy(), source.values[..., columns, :].copy())

    def restore(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy stowed KV into `columns`."""
        self._widen(pool, columns.stop)
        keys, values = self._shelf[key]
        self._pools[pool].keys[..., columns] = keys
        self._pools[pool].values[..., columns, :] = values

    def drop(self, key: bytes) -> None:
        """Forget a copy."""
        self._shelf.pop(key, None)

    def close(self) -> None:
        """Drop bindings, then buffers, then sessions: a binding must not outlive what it points to."""
        self._passes.clear()
        self._last = None
        self._arena.clear()
        self._pools.clear()
        self._shelf.clear()
        self._sessions.clear()

    def _widen(self, pool: int, columns: int) -> None:
        if columns > self._pools[pool].past:
            self._set_width(pool, self._shapes.round_past(columns))

    def _set_width(self, pool: int, past: int) -> None:
        """Re-lay a pool for another number of past columns; a column keeps its index and its contents."""
        old = self._pools[pool]
        if old.past == past:
            return
        new = _new_pool(self._manifest, past)
        kept = min(past, old.past)
        new.keys[..., :kept] = old.keys[..., :kept]
        new.values[..., :kept, :] = old.values[..., :kept, :]
        self._pools[pool] = new
        self._passes = {key: value for key, value in self._passes.items() if key[0] != pool}
        self._restrides += 1

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
        fresh = _new_fresh(self._arena, self._manifest, graphs, shape.rows)
        half, real = self._manifest.model.rope.rotary_dim // 2, np.dtype(np.float32)
        made = _Pass(
            input_ids=np.zeros((1, shape.rows), np.int32),
            mask=self._arena.array("mask", (1, 1, shape.rows, shape.context), real),
            cos=self._arena.array("cos", (1, 1, shape.rows, half), real),
            sin=self._arena.array("sin", (1, 1, shape.rows, half), real),
            fresh=fresh,
            parts=[],
            output=next(reversed(fresh.hidden.values())),
        )
        made.parts = [self._bind_part(graph, made, self._pools[pool]) for graph in graphs]
        return made

    def _bind_part(self, graph: GraphSpec, bound: _Pass, pool: _Pool) -> _Binding:
        session = self._sessions[graph.name]
        binding = session.io_binding()
        inputs: dict[str, Array] = {
            "input_ids": bound.input_ids,
            "attention_mask": bound.mask,
            "position_ids_cos": bound.cos,
            "position_ids_sin": bound.sin,
            **bound.fresh.hidden,
        }
        for tensor in graph.inputs:
            array = layer_slice(tensor.name, "_in", pool.keys, pool.values)
            _bind_array(binding.bind_input, tensor.name, inputs[tensor.name] if array is None else array)
        for tensor in graph.outputs:
            array = layer_slice(tensor.name, "_out", bound.fresh.keys, bound.fresh.values)
            _bind_array(binding.bind_output, tensor.name, bound.fresh.hidden[tensor.name] if array is None else array)
        return _Binding(session, binding)

    def _logits(self, output: Array, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows [R, V] of the last part's output, through the head graph when there is one."""
        if not len(rows):
            return np.empty((0, self._manifest.model.vocab), np.float32)
        chosen = output[0, rows]
        found = self._head(len(rows))
        if found is None:
            return np.asarray(chosen, np.float32)
        head, width = found
        pieces = []
        for start in range(0, len(rows), width):
            count = min(width, len(rows) - start)
            piece = np.zeros((1, width, chosen.shape[1]), np.float32)
            piece[0, :count] = chosen[start : start + count]
            logits = self._sessions[head.name].run(None, {head.inputs[0].name: piece})[0]
            pieces.append(logits[0, :count])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _head(self, rows: int) -> tuple[GraphSpec, int] | None:
        """The smallest head that takes all rows at once, else the largest, and the rows it runs with.

        One shape for every pass means one head for every pass: how a row rounds may depend on the rows beside it.
        """
        heads = [graph for graph in self._manifest.graphs if graph.kind is GraphKind.LMHEAD]
        if not heads:
            return None
        wanted = max(rows, self._shapes.max_rows) if len(self._shapes.fixed) == 1 else rows
        heads.sort(key=lambda graph: (graph.rows is None, graph.rows or 0))
        chosen = next((head for head in heads if head.rows is None or head.rows >= wanted), heads[-1])
        return chosen, wanted if chosen.rows is None else chosen.rows


def _new_pool(manifest: Manifest, past: int) -> _Pool:
    model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
    lead = (model.layers, model.kv_heads, 1)
    return _Pool(np.zeros((*lead, model.head_dim, past), dtype), np.zeros((*lead, past, model.head_dim), dtype))


class _Arena:
    """Scratch memory shared by all shapes: passes run one at a time, so their buffers may overlap."""

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A view [shape] of the memory called `name`; grown memory leaves older views valid but apart."""
        size = math.prod(shape) * dtype.itemsize
        flat = self._flat.get(name)
        if flat is None or flat.nbytes < size:
            flat = self._flat[name] = np.zeros(size, np.uint8)
        return flat[:size].view(dtype).reshape(shape)

    def clear(self) -> None:
        """Let go of the memory."""
        self._flat.clear()


def _new_fresh(arena: _Arena, manifest: Manifest, graphs: list[GraphSpec], rows: int) -> _Fresh:
    model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
    lead = (model.layers, model.kv_heads, 1)
    hidden = {
        tensor.name: arena.array(
            tensor.name,
            tuple(dim if isinstance(dim, int) else rows for dim in tensor.shape),
            np.dtype(tensor.dtype),
        )
        for graph in graphs
        for tensor in graph.outputs
        if not tensor.name.startswith("past_")
    }
    keys = arena.array("fresh keys", (*lead, model.head_dim, rows), dtype)
    return _Fresh(keys, arena.array("fresh values", (*lead, rows, model.head_dim), dtype), hidden)


def _bind_array(bind: object, name: str, array: Array) -> None:
    assert callable(bind)
    assert array.flags.c_contiguous, f"{name} is not contiguous"
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
