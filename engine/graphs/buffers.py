"""The memory of a runtime: past pools, fresh outputs, row inputs. numpy only; graphs bind to it and never own it.

Legend: L = layers, K = KV heads, D = head size, W = width of a pool, N = rows, P = past columns, C = P + N.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array, Encoding, encoding_of
from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec
from engine.bundle.tensor_names import place_of
from engine.bundle.variant import PassShape
from engine.graphs.batch import PackedBatch
from engine.graphs.rotary import RotaryTable

EVERY = slice(None)
ROTARY = {"position_ids_cos": True, "position_ids_sin": False}


class Pool:
    """Past keys [L, K, 1, D, W] and values [L, K, 1, W, D]; unwritten columns hold an encoded zero.

    `zeros` are the codes of zero, [2, L, K]: for keys and values of each layer and head.
    """

    def __init__(self, manifest: Manifest, width: int, zeros: NDArray[np.int64]) -> None:
        model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
        lead = (model.layers, model.kv_heads, 1)
        self._manifest = manifest
        self._zeros = zeros
        self.keys: Array = np.empty((*lead, model.head_dim, width), dtype)
        self.values: Array = np.empty((*lead, width, model.head_dim), dtype)
        self.keys[...] = zeros[0][..., None, None, None]
        self.values[...] = zeros[1][..., None, None, None]

    @property
    def width(self) -> int:
        """Columns of the buffers."""
        return int(self.values.shape[-2])

    def relaid(self, width: int) -> "Pool":
        """A pool of `width` columns; those that both have keep their index and contents."""
        made = Pool(self._manifest, width, self._zeros)
        shared = min(width, self.width)
        made.keys[..., :shared] = self.keys[..., :shared]
        made.values[..., :shared, :] = self.values[..., :shared, :]
        return made


def zero_codes(manifest: Manifest) -> NDArray[np.int64]:
    """[2, L, K]: what zero is stored as in the keys and values of each layer and head."""
    codes = np.zeros((2, manifest.model.layers, manifest.model.kv_heads), np.int64)
    for graph in manifest.graphs:
        for tensor in graph.inputs:
            place = place_of(tensor.name, "_in")
            if place is not None and not encoding_of(tensor).is_float:
                place.of(codes[0], codes[1])[...] = encoding_of(tensor).zero_point
    return codes


class Arena:
    """Scratch memory by name, shared by all shapes: passes run one at a time, so their buffers may overlap."""

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of `shape` at the start of the memory called `name`, which is replaced when it is too small.

        Arrays handed out before stay usable; they no longer share their memory with later ones.
        """
        size = math.prod(shape) * dtype.itemsize
        flat = self._flat.get(name)
        if flat is None or flat.nbytes < size:
            flat = self._flat[name] = np.zeros(size, np.uint8)
        return flat[:size].view(dtype).reshape(shape)

    def clear(self) -> None:
        """Let go of the memory."""
        self._flat.clear()


class Fresh:
    """Outputs of a pass: keys [L, K, 1, D, N], values [L, K, 1, N, D], and the other tensors by name."""

    def __init__(self, arena: Arena, manifest: Manifest, graphs: Iterable[GraphSpec], rows: int) -> None:
        model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
        lead = (model.layers, model.kv_heads, 1)
        self.keys = arena.array("fresh keys", (*lead, model.head_dim, rows), dtype)
        self.values = arena.array("fresh values", (*lead, rows, model.head_dim), dtype)
        self.others: dict[str, Array] = {}
        self.last: TensorSpec | None = None
        for graph in graphs:
            for tensor in graph.outputs:
                if place_of(tensor.name, "_out") is None:
                    shape = tuple(dim if isinstance(dim, int) else rows for dim in tensor.shape)
                    self.others[tensor.name] = arena.array(tensor.name, shape, np.dtype(tensor.dtype))
                    self.last = tensor

    def non_finite(self, rows: NDArray[np.int64], layers: slice = EVERY) -> NDArray[np.int64]:
        """Those of `rows` [M] whose keys or values hold infinity or NaN in these layers; integers cannot."""
        if self.keys.dtype.kind != "f":
            return rows[:0]
        sound = np.isfinite(self.keys[layers][..., rows].sum(axis=(0, 1, 2, 3), dtype=np.float64))
        sound &= np.isfinite(self.values[layers][..., rows, :].sum(axis=(0, 1, 2, 4), dtype=np.float64))
        return np.asarray(rows[~sound], np.int64)


class RowInputs:
    """Inputs that are written anew for every pass: ids, mask, cos, sin, cache index; one buffer per encoding."""

    def __init__(self, arena: Arena, manifest: Manifest, shape: PassShape) -> None:
        self._arena = arena
        self._rope = manifest.model.rope
        self._shape = shape
        self._ids: list[Array] = []
        self._masks: dict[Encoding, tuple[Array, Array]] = {}
        self._rotary: dict[tuple[bool, Encoding], Array] = {}

    def buffer(self, tensor: TensorSpec) -> Array | None:
        """The array to bind to a row input, None when the tensor is something else.

        ids [1, N], mask [..., N, C], cos and sin [..., N, rotary_dim / 2], cache index as the tensor has it.
        """
        rows, context = self._shape.rows, self._shape.context
        if tensor.name == "input_ids":
            array = self._arena.array("ids", (1, rows), np.dtype(np.int32))
            self._ids.append(array)
            return array
        if tensor.name == "cache_index":
            # Fresh columns always follow the past ones, so that scatter and concatenation are laid out alike.
            first = self._shape.past
            length = math.prod(dim if isinstance(dim, int) else 1 for dim in tensor.shape)
            return np.arange(first, first + length, dtype=tensor.dtype).reshape([int(dim) for dim in tensor.shape])
        if tensor.name == "attention_mask":
            encoding = encoding_of(tensor)
            array = self._arena.array(f"mask {encoding}", (rows, context), np.dtype(tensor.dtype))
            self._masks[encoding] = (encoding.mask_codes(), array)
            return array.reshape((1,) * (len(tensor.shape) - 2) + (rows, context))
        if tensor.name in ROTARY:
            return self._rotary_buffer(tensor)
        return None

    def _rotary_buffer(self, tensor: TensorSpec) -> Array:
        encoding, half = encoding_of(tensor), self._rope.rotary_dim // 2
        array = self._arena.array(f"{tensor.name} {encoding}", (self._shape.rows, half), np.dtype(tensor.dtype))
        self._rotary[ROTARY[tensor.name], encoding] = array
        return array.reshape((1,) * (len(tensor.shape) - 2) + array.shape)

    def fill(self, batch: PackedBatch, tables: dict[tuple[bool, Encoding], RotaryTable]) -> None:
        """Write a batch of N rows into every buffer. `tables` is the caller's cache of rotary tables and grows here."""
        for ids in self._ids:
            ids[0] = batch.input_ids
        for codes, mask in self._masks.values():
            batch.paint(mask, codes)
        for (is_cos, encoding), out in self._rotary.items():
            if (is_cos, encoding) not in tables:
                tables[is_cos, encoding] = RotaryTable(self._rope, is_cos, encoding)
            tables[is_cos, encoding].fill(batch.positions, out)
