"""Runs the graph that reads a tile of an image, an image in its own proportions, or images of one size.
Of one size: P = patches, those of a cell after each other; T = cells, rows of the text; D = pairs that turn. Cells come
row by row; rotation and masks, and in early exports cells as well, window after window."""

from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.bundle.images import cell_order
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.tensors import COS, SIN, Array, encoding_of
from engine.bundle.vision import (
    FEATURES,
    HIDDEN,
    PADDING,
    PATCHES,
    PIXEL_VALUES,
    PIXELS,
    PLACES,
    SEEN,
    SEEN_IN_WINDOW,
    SPAN,
    FixedSpec,
    NativeSpec,
    VisionSpec,
    deep_features,
)
from engine.errors import BundleError, StepFailed
from engine.request import PromptImage
from engine.runtime.sessions import Provider, open_graph, run_unbound

SLOTS, CELLS = "rows", "cells"
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class VisionGraph:
    """BundleError when the graph cannot be loaded or is not what the manifest says."""

    def __init__(self, folder: Path, manifest: Manifest, provider: Provider) -> None:
        vision = manifest.vision
        assert vision is not None, "the bundle was checked"
        inputs, rows = _forms(vision)
        outputs = (TensorSpec(FEATURES, "float32", (rows, manifest.model.hidden * (1 + vision.deepstack))),)
        graph = GraphSpec("vision", vision.file, GraphKind.IMAGE_ENCODER, 1, 1, inputs, outputs)
        self._session = open_graph(folder, graph, provider)
        self._vision = vision

    def rows(self, image: PromptImage) -> bytes:
        """float32 rows of a tile. StepFailed when onnxruntime raises, or when they are not finite."""
        native, side = self._vision.native, self._vision.side
        cell = native.cell if native is not None else 0
        height, width = (side, side) if native is None else (image.grid[0] * cell, image.grid[1] * cell)
        pixels = pixels_of(image, "a tile", height, width)
        rows = self._run({PIXELS: pixels[None]}) if native is None else self._in_slots(pixels, image.grid, native)
        return image_bytes(rows)

    def _in_slots(self, pixels: Bytes, grid: tuple[int, int], native: NativeSpec) -> Floats:
        """Rows of an image [cells, width] by a run with the fewest slots that it fits."""
        slots, wanted = slots_of(native, *grid), native.slots(*grid)
        bucket = next((count for count in native.buckets if count >= wanted), 0)
        if not bucket:
            most = native.buckets[-1]
            raise StepFailed(f"an image of {grid[0]} x {grid[1]} tokens takes {wanted} slots, {most} are most")
        return self._run(native_inputs(native, pixels, slots, bucket))[slots]

    def _run(self, inputs: dict[str, Array]) -> Floats:
        return np.asarray(run_unbound("vision", self._session, [FEATURES], inputs)[0], np.float32)


def pixels_of(image: PromptImage, what: str, height: int, width: int) -> Bytes:
    """[3, height, width]. StepFailed when they are not as many."""
    if len(image.pixels) != 3 * height * width:
        raise StepFailed(f"{what} has {len(image.pixels)} bytes, {3 * height * width} are expected")
    return np.frombuffer(image.pixels, np.uint8).reshape(3, height, width)


def image_bytes(rows: Floats) -> bytes:
    """float32 rows of an image. StepFailed when they are not finite."""
    if not np.isfinite(rows).all():
        raise StepFailed("graph vision returned rows that are not finite")
    return np.ascontiguousarray(rows, "<f4").tobytes()


def _forms(vision: VisionSpec) -> tuple[tuple[TensorSpec, ...], int | str]:
    """The inputs of the graph, and how many rows it gives."""
    if vision.native is None:
        return (TensorSpec(PIXELS, "uint8", (1, 3, vision.side, vision.side)),), vision.tokens
    patches = TensorSpec(PATCHES, "uint8", (SLOTS, 3 * vision.native.patch**2))
    places, padding = TensorSpec(PLACES, "float32", (SLOTS, 2)), TensorSpec(PADDING, "float32", (SLOTS, 1))
    return (patches, places, padding, TensorSpec(SPAN, "float32", (1, 2))), CELLS


def slots_of(native: NativeSpec, rows: int, columns: int) -> NDArray[np.int64]:
    """The slot of each cell of an image, row by row [rows * columns]: window after window, if there are any."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    side = native.window
    if not side:
        return np.arange(rows * columns)
    windows = row // side * -(-columns // side) + column // side
    return np.asarray(windows * side**2 + row % side * side + column % side)


def native_inputs(native: NativeSpec, pixels: Bytes, slots: NDArray[np.int64], bucket: int) -> dict[str, Array]:
    """What the graph takes of an image [3, height, width] whose cells lie in `slots`, of `bucket` in all."""
    patch, merge = native.patch, native.merge
    cells, found = patches_of(pixels, native).reshape(-1, merge**2, 3 * patch**2), places_of(native, *pixels.shape[1:])
    patches, places = np.zeros((bucket, *cells.shape[1:]), np.uint8), np.zeros((bucket, *found.shape[1:]), np.float32)
    padding = np.ones((bucket, merge**2), np.float32)
    patches[slots], places[slots], padding[slots] = cells, found, 0
    return {
        PATCHES: patches.reshape(-1, patches.shape[-1]),
        PLACES: places.reshape(-1, 2),
        PADDING: padding.reshape(-1, 1),
        SPAN: np.maximum(found[-1, -1], 1)[None].astype(np.float32),
    }


LIGHTEST = 255.0  # a colour as a byte
Doubles = NDArray[np.float64]
Number = TypeVar("Number", bound=np.generic)
Order = NDArray[np.int64]


class FixedVisionGraph:
    """BundleError when the graph cannot be loaded or is not what the manifest says."""

    def __init__(self, folder: Path, manifest: Manifest, provider: Provider) -> None:
        assert manifest.vision is not None and manifest.vision.fixed is not None and manifest.image_graph is not None
        self._fixed, self._native, graph = manifest.vision.fixed, manifest.vision.native, manifest.image_graph
        self._session = open_graph(folder, graph, provider)
        self._inputs = {tensor.name: tensor for tensor in graph.inputs}
        given = {tensor.name: tensor for tensor in graph.outputs}
        self._outputs = [given[name] for name in (FEATURES, *map(deep_features, range(manifest.vision.deepstack)))]
        self._same: dict[str, Array] = {}
        self._order: Order | None = None  # of cells that come and go window after window
        if self._native is not None:
            order = cell_order(manifest.vision)
            self._same = self._of_every_image(order, self._native)
            if SEEN_IN_WINDOW in self._inputs and self._native.window and not self._orders_cells(order):
                self._order = order

    def rows(self, image: PromptImage) -> bytes:
        """float32 rows of an image, what DeepStack adds behind each. StepFailed, also when they are not finite."""
        return image_bytes(self.read(pixels_of(image, "an image", self._fixed.height, self._fixed.width)))

    def read(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The same as numbers [T, width], of pixels [3, height, width]."""
        values = normalised(pixels, self._fixed)
        if self._native is not None:
            values = patches_of(values, self._native, self._fixed.frames)
        if self._order is None:
            return self._run(values)
        return self._run(values.reshape(len(self._order), -1)[self._order])[np.argsort(self._order)]

    def _run(self, values: Doubles, **changed: Array) -> NDArray[np.float32]:
        """Rows [T, width]. changed: inputs that are the same for every image otherwise."""
        inputs = self._same | {PIXEL_VALUES: self._encoded(PIXEL_VALUES, values)} | changed
        found = run_unbound("vision", self._session, [tensor.name for tensor in self._outputs], inputs)
        decoded = [
            encoding_of(tensor).decode(array).reshape(-1, int(tensor.shape[-1]))
            for tensor, array in zip(self._outputs, found, strict=True)
        ]
        return np.concatenate(decoded, axis=-1)

    def _encoded(self, name: str, values: Doubles) -> Array:
        tensor = self._inputs[name]
        return encoding_of(tensor).encode(values).reshape([int(dim) for dim in tensor.shape])

    def _of_every_image(self, order: Order, native: NativeSpec) -> dict[str, Array]:
        places = places_of(native, self._fixed.height, self._fixed.width)[order].reshape(-1, 2)
        cos, sin = rotation(places, int(self._inputs[COS].shape[-1]), self._fixed.theta)
        windows = places // (native.window * native.merge) if native.window else np.zeros_like(places)
        together = (windows[:, None] == windows[None]).all(axis=-1)
        masks = {SEEN: np.zeros(together.shape), SEEN_IN_WINDOW: np.where(together, 0.0, HIDDEN)}
        values = {COS: cos, SIN: sin, **masks}
        return {name: self._encoded(name, array) for name, array in values.items() if name in self._inputs}

    def _orders_cells(self, order: Order) -> bool:
        """Whether the graph itself goes from row by row to window after window and back; exports differ. Told by a cell
        with another place under the masks then: it is left alone, and alone in what comes out if its colour changes."""
        moved = np.flatnonzero(order != np.arange(len(order)))
        if not len(moved):
            return True
        place = int(moved[0])
        cell, patches = int(order[place]), int(self._inputs[PIXEL_VALUES].shape[0])
        alone = np.repeat(np.arange(len(order)) == place, patches // len(order))
        mask = np.where(alone[:, None] == alone, 0.0, HIDDEN)
        masks = {name: self._encoded(name, mask) for name in (SEEN, SEEN_IN_WINDOW) if name in self._inputs}
        values = np.zeros((len(order), np.prod([int(dim) for dim in self._inputs[PIXEL_VALUES].shape]) // len(order)))
        changed = values.copy()
        changed[cell] = 1.0
        try:
            differ = (self._run(values, **masks) != self._run(changed, **masks)).any(axis=-1)
        except StepFailed as error:
            raise BundleError(f"graph vision cannot be tried: {error}") from error
        return not np.delete(differ, cell).any()


def normalised(pixels: NDArray[np.uint8], fixed: FixedSpec) -> Doubles:
    """Colours as the graph wants them [3, height, width]."""
    mean, std = (np.array(each)[:, None, None] for each in (fixed.mean, fixed.std))
    return np.asarray((pixels / LIGHTEST - mean) / std, np.float64)


def patches_of(values: NDArray[Number], native: NativeSpec, frames: int = 1) -> NDArray[Number]:
    """[3, height, width] -> [P, 3 * frames * patch ** 2]; transformers' `Qwen2VLImageProcessor`."""
    patch, merge = native.patch, native.merge
    rows, columns = (size // native.cell for size in values.shape[1:])
    apart = values.reshape(3, rows, merge, patch, columns, merge, patch).transpose(1, 4, 2, 5, 0, 3, 6)
    whole = np.repeat(apart[:, :, :, :, :, None], frames, axis=5)
    return whole.reshape(rows * columns * merge**2, 3 * frames * patch**2)


def places_of(native: NativeSpec, height: int, width: int) -> NDArray[np.int64]:
    """Row and column of each patch of each cell, row by row [T, patches of a cell, 2]."""
    rows, columns, merge = height // native.cell, width // native.cell, native.merge
    grid = np.stack(np.meshgrid(np.arange(rows * merge), np.arange(columns * merge), indexing="ij"), axis=-1)
    return grid.reshape(rows, merge, columns, merge, 2).transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1, 2)


def rotation(places: NDArray[np.int64], pairs: int, theta: float) -> tuple[Doubles, Doubles]:
    """cos and sin [P, D] of places [P, 2]: the first half of the pairs turns by the row, the second by the column."""
    frequencies = (1.0 / theta ** (np.arange(0, pairs, 2) / pairs)).astype(np.float32)
    angles = (places[:, :, None] * frequencies).reshape(len(places), pairs)
    return np.cos(angles), np.sin(angles)
