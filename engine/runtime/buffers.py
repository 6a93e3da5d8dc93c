"""The memory of a runtime: past pools, fresh outputs, row inputs. numpy only; graphs bind to it and never own it.
Legend: L = layers, K = KV heads, D = head size, W = width of a pool, N = rows, P = past columns, C = P + N."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.bundle.tensors import (
    EMBEDS,
    IDS,
    MASK,
    ROTARY,
    WINDOW_MASK,
    WINDOW_ROTARY,
    WITH_LAYERS,
    Array,
    Encoding,
    encoding_of,
    place_of,
)
from engine.bundle.variant import StepShape, shape_of
from engine.bundle.vision import DEEP, IMAGE_ROWS
from engine.errors import BundleError
from engine.runtime.embedded import Tables
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.mask import hide_behind, paint
from engine.runtime.window_columns import WindowColumns

GROWTH = 1024


class RotaryTable:
    """One encoded table [positions, rotary_dim / 2] of cos or sin, grown as positions come up.
    Angles are float32 products, as in transformers: a finer product would differ from what the model was trained on."""

    def __init__(self, rope: RopeSpec, is_cos: bool, encoding: Encoding) -> None:
        self._frequencies = np.array(rope.inverse_frequencies, np.float32)
        self._factor = rope.factor
        self._function = np.cos if is_cos else np.sin
        self._encoding = encoding
        self._axes = np.array(rope.axes or (0,) * len(self._frequencies))
        self._table: Array = np.empty((0, len(self._frequencies)), encoding.dtype)

    def fill(self, positions: NDArray[np.int32], out: Array) -> None:
        """Write the rows of `positions` [N], or of positions by axis [3, N], into out [N, rotary_dim / 2]."""
        highest = int(positions.max(initial=0))
        if highest >= len(self._table):
            angles = (np.arange(highest + GROWTH, dtype=np.float32)[:, None] * self._frequencies).astype(np.float64)
            self._table = self._encoding.encode(self._function(angles) * self._factor)
        if positions.ndim > 1:
            out[...] = self._table[positions[self._axes].T, np.arange(len(self._axes))]
            return
        np.take(self._table, positions, axis=0, out=out, mode="clip")


class RotationTables:
    """Those of a model, by the name of a graph's input, made as graphs come up that want them."""

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._made: dict[tuple[str, Encoding], RotaryTable] = {}

    def fill(self, name: str, encoding: Encoding, positions: NDArray[np.int32], out: Array) -> None:
        if (name, encoding) not in self._made:
            rope = self._model.local_rope if name in WINDOW_ROTARY else self._model.rope
            assert rope is not None, "the bundle was checked"
            self._made[name, encoding] = RotaryTable(rope, (ROTARY | WINDOW_ROTARY)[name], encoding)
        self._made[name, encoding].fill(positions, out)


def layer_graphs(manifest: Manifest, shape: StepShape | None) -> list[GraphSpec]:
    """The graphs of a step without the head, in part order. BundleError when a shape has no decoder."""
    found = [graph for graph in manifest.graphs if graph.kind in WITH_LAYERS and shape_of(graph) == shape]
    if not found:
        raise BundleError(f"the bundle has no decoder graph for {shape or 'free shapes'}")
    rows = (None, shape and shape.rows)
    tables = [graph for graph in manifest.graphs if graph.kind is GraphKind.LUT and graph.rows in rows]
    return sorted(found + tables, key=lambda graph: graph.part)


def layers_of(graph: GraphSpec) -> slice:
    """The layers whose keys and values a graph gives; an empty slice for one that gives none."""
    places = [place.layer for tensor in graph.outputs if (place := place_of(tensor.name, "_out")) is not None]
    return slice(min(places), max(places) + 1) if places else slice(0, 0)


def linear_graphs(manifest: Manifest) -> list[GraphSpec]:
    return sorted((graph for graph in manifest.graphs if graph.kind is GraphKind.LINEAR), key=lambda graph: graph.part)


def spans(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> list[tuple[slice | Array, slice | Array]]:
    """Cut pairs of rows [M] and columns [M] into slices where both run on; short runs are one fancy index for all."""
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(columns) != 1)) + 1
    if len(breaks) >= 8:
        return [(rows, columns)]
    edges = [0, *breaks.tolist(), len(rows)]
    return [
        (slice(int(rows[a]), int(rows[b - 1]) + 1), slice(int(columns[a]), int(columns[b - 1]) + 1))
        for a, b in pairwise(edges)
    ]


EVERY = slice(None)


class Pool:
    """Past keys [L, K, 1, D, W] and values [L, K, 1, W, D]; unwritten columns hold an encoded zero.
    `zeros` are the codes of zero, [2, L, K]: for keys and values of each layer and head."""

    def __init__(self, manifest: Manifest, width: int, zeros: NDArray[np.int64]) -> None:
        model, dtype = manifest.model, np.dtype(manifest.kv_dtype)
        lead = (zeros.shape[1], model.kv_heads, 1)
        self._manifest = manifest
        self._zeros = zeros
        self.keys: Array = np.empty((*lead, model.head_dim, width), dtype)
        self.values: Array = np.empty((*lead, width, model.head_dim), dtype)
        self.clean()

    def clean(self) -> None:
        """Nothing but zeros: under a mask a column still counts as 0 times its value, and 0 times NaN is NaN."""
        self.keys[...] = self._zeros[0][..., None, None, None]
        self.values[...] = self._zeros[1][..., None, None, None]

    @property
    def width(self) -> int:
        return int(self.values.shape[-2])

    def relaid(self, width: int, moves: Iterable[tuple[slice, slice]]) -> "Pool":
        """A pool of `width` columns with those that move: from where to where."""
        made = Pool(self._manifest, width, self._zeros)
        for old, new in moves:
            made.keys[..., new] = self.keys[..., old]
            made.values[..., new, :] = self.values[..., old, :]
        return made


def blank(tensor: TensorSpec, *lead: int) -> Array:
    """Zeros, as they are stored, in the tensor's shape behind `lead`."""
    return np.full([*lead, *(int(size) for size in tensor.shape)], tensor.zero_point or 0, np.dtype(tensor.dtype))


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
    """Scratch memory by name, shared by all shapes: steps run one at a time, so their buffers may overlap."""

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of `shape` at the start of the memory called `name`, which is replaced when it is too small.
        Arrays handed out before stay usable; they no longer share their memory with later ones."""
        size = math.prod(shape) * dtype.itemsize
        flat = self._flat.get(name)
        if flat is None or flat.nbytes < size:
            flat = self._flat[name] = np.zeros(size, np.uint8)
        return flat[:size].view(dtype).reshape(shape)

    def clear(self) -> None:
        self._flat.clear()


class Fresh:
    """Outputs of a step: keys [L, K, 1, D, N], values [L, K, 1, N, D], and the other tensors by name."""

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
    """Inputs that are written anew for every step: ids, masks, cos, sin, cache index; one buffer per encoding.
    Where layers see a window, mask and rotation of theirs as well. padding_sees: whether a padding row sees itself.
    windows: where a pool's columns lie in layers with a window, None = where they do in others."""

    def __init__(
        self,
        arena: Arena,
        manifest: Manifest,
        shape: StepShape,
        tables: Tables,
        padding_sees: bool = True,
        windows: WindowColumns | None = None,
    ) -> None:
        self._padding_sees = padding_sees
        self._windows = windows
        self._arena = arena
        self._tables = tables
        self._looked_up: dict[tuple[str, Encoding], Array] = {}
        self._shape = shape
        self._window = manifest.window
        self._ids: list[Array] = []
        self._masks: dict[tuple[int, Encoding], tuple[Array, Array]] = {}  # by what layers of a pool see, 0 = all
        self._pool_window = max(manifest.model.layer_windows, default=0)
        self._rotary: dict[tuple[str, Encoding], Array] = {}
        self._window_masks: list[tuple[Array, Array]] = []
        self._narrow_masks: list[tuple[Array, Array, np.generic]] = []  # over all columns, over those of the layers
        self._image_rows: list[tuple[Array, Array]] = []
        self._deep: list[tuple[int, Array, Encoding]] = []

    def buffer(self, tensor: TensorSpec) -> Array | None:
        """The array to bind to a row input, None when the tensor is something else.
        ids [1, N], embeddings [1, N, H], mask [..., N, C], cos and sin [..., N, rotary_dim / 2], cache index as the
        tensor has it."""
        rows = self._shape.rows
        if tensor.name == IDS:
            self._ids.append(self._arena.array("ids", (1, rows), np.dtype(np.int32)))
            return self._ids[-1]
        if tensor.name in self._tables:
            width = math.prod(dim for dim in tensor.shape[2:] if isinstance(dim, int))
            array = self._looked_up[tensor.name, encoding_of(tensor)] = self._scratch(tensor, width)
            return array.reshape([rows if isinstance(dim, str) else dim for dim in tensor.shape])
        if tensor.name == "cache_index":
            # Fresh columns always follow the past ones, so that scatter and concatenation are laid out alike.
            sizes, first = [int(dim) for dim in tensor.shape], self._shape.past
            return np.arange(first, first + math.prod(sizes), dtype=tensor.dtype).reshape(sizes)
        if tensor.name in (MASK, WINDOW_MASK):
            array = self._mask_buffer(tensor)
        elif tensor.name in ROTARY | WINDOW_ROTARY:
            array = self._rotary[tensor.name, encoding_of(tensor)] = self._scratch(tensor, int(tensor.shape[-1]))
        else:
            return self._image_buffer(tensor)
        return array.reshape((1,) * (len(tensor.shape) - 2) + array.shape)

    def _scratch(self, tensor: TensorSpec, width: int) -> Array:
        """[N, width], one for each name and encoding."""
        name = f"{tensor.name} {encoding_of(tensor)}"
        return self._arena.array(name, (self._shape.rows, width), np.dtype(tensor.dtype))

    def _mask_buffer(self, tensor: TensorSpec) -> Array:
        """[N, C], or [N, W + N] over the W columns that a pool's layers with a window have."""
        encoding = encoding_of(tensor)
        codes = encoding.mask_codes()
        if tensor.name == WINDOW_MASK and self._window:
            self._window_masks.append((codes, self._scratch(tensor, int(tensor.shape[-1]))))
            return self._window_masks[-1][1]
        array = self._scratch(tensor, self._shape.context)
        window = self._pool_window if tensor.name == WINDOW_MASK else 0
        self._masks[window, encoding] = codes, array
        if window and self._windows is not None:
            narrow = self._arena.array(f"narrow {tensor.name}", (len(array), int(tensor.shape[-1])), array.dtype)
            self._narrow_masks.append((array, narrow, codes[0]))
            return narrow
        return array

    def _image_buffer(self, tensor: TensorSpec) -> Array | None:
        """Of DeepStack: nothing is added until rows of images come."""
        deep = DEEP.fullmatch(tensor.name)
        if deep is None and tensor.name != IMAGE_ROWS:
            return None
        array = blank(tensor)
        if deep is not None:
            self._deep.append((int(deep[1]), array, encoding_of(tensor)))
        else:
            codes = np.array([0, 1]) if tensor.dtype == "bool" else encoding_of(tensor).encode(np.array([0.0, 1.0]))
            self._image_rows.append((array, codes))
        return array

    def fill(self, batch: PackedBatch, rotary: RotationTables) -> None:
        """Write a batch of N rows into every buffer. Rotations are the caller's, for all its shapes; graphs whose
        layers see a window take rows of one sequence."""
        for ids in self._ids:
            ids[0] = batch.input_ids
        for (name, encoding), looked_up in self._looked_up.items():
            self._tables[name].fill(batch.input_ids, looked_up, encoding)
            if batch.embedded is not None and name in EMBEDS:
                batch.embedded.write(looked_up[None], encoding)
        for (window, _), (codes, mask) in self._masks.items():
            paint(batch, mask, codes, self._padding_sees)
            if window:
                hide_behind(batch, mask, codes[0], window)
        for painted, mask, hidden in self._narrow_masks:
            assert self._windows is not None
            self._windows.gather(painted, mask, self._shape.past, hidden)
        for codes, mask in self._window_masks:
            (segment,) = batch.segments
            mask[...] = codes[self._in_window(segment, mask.shape[1] - len(mask)).view(np.int8)]
        turned_by = batch.positions if batch.axes is None else batch.axes
        for (name, encoding), out in self._rotary.items():
            rotary.fill(name, encoding, turned_by, out)
        self._fill_images(batch)

    def _in_window(self, segment: PackedSegment, columns: int) -> NDArray[np.bool_]:
        """bool [N, columns + N]: each row sees the last `window` tokens up to its own."""
        own = segment.past + np.arange(self._shape.rows) - segment.start
        newest = segment.past - 1  # a token lies in the window column of its number modulo their count; negative = none
        tokens = np.concatenate([newest - (newest - np.arange(columns)) % columns, own])
        tokens[columns : columns + segment.start] = -1  # padding
        near = (tokens <= own[:, None]) & (tokens > own[:, None] - self._window) & (tokens >= 0)
        near[: segment.start] = False
        return np.ascontiguousarray(near)

    def _fill_images(self, batch: PackedBatch) -> None:
        for rows, codes in self._image_rows:
            rows[...] = codes[0]
        if batch.embedded is None:
            return
        for rows, codes in self._image_rows:
            rows.reshape(-1)[batch.embedded.rows] = codes[1]
        for layer, deep, encoding in self._deep:
            batch.embedded.write_deep(layer, deep, encoding)
