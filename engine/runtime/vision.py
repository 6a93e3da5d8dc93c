"""Runs the graph that reads a tile of an image, or an image in its own proportions."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.tensors import Array
from engine.bundle.vision import FEATURES, PADDING, PATCHES, PIXELS, PLACES, SPAN, NativeSpec, VisionSpec
from engine.errors import StepFailed
from engine.request import PromptImage
from engine.runtime.sessions import Provider, open_graph, run_unbound

SLOTS, CELLS = "rows", "cells"
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class VisionGraph:
    """BundleError when the graph cannot be loaded or is not what the manifest says."""

    def __init__(self, folder: Path, manifest: Manifest, vision: VisionSpec, provider: Provider) -> None:
        inputs, rows = _forms(vision)
        outputs = (TensorSpec(FEATURES, "float32", (rows, manifest.model.hidden * (1 + vision.deepstack))),)
        graph = GraphSpec("vision", vision.file, GraphKind.IMAGE_ENCODER, 1, 1, inputs, outputs)
        self._session = open_graph(folder, graph, provider)
        self._vision = vision

    def rows(self, image: PromptImage) -> bytes:
        """float32 rows of a tile. StepFailed when onnxruntime raises, or when they are not finite."""
        native, side = self._vision.native, self._vision.side
        cell = native.cell if native is not None else 0
        shape = (3, side, side) if native is None else (3, image.grid[0] * cell, image.grid[1] * cell)
        if len(image.pixels) != math.prod(shape):
            raise StepFailed(f"a tile has {len(image.pixels)} bytes, {math.prod(shape)} are expected")
        pixels = np.frombuffer(image.pixels, np.uint8).reshape(shape)
        rows = self._run({PIXELS: pixels[None]}) if native is None else self._in_slots(pixels, image.grid, native)
        return image_bytes(rows)

    def _in_slots(self, pixels: Bytes, grid: tuple[int, int], native: NativeSpec) -> Floats:
        """Rows of an image [cells, width] by a run with the fewest slots that it fits."""
        slots = slots_of(native, *grid)
        wanted = native.slots(*grid)
        bucket = next((count for count in native.buckets if count >= wanted), 0)
        if not bucket:
            raise StepFailed(
                f"an image of {grid[0]} x {grid[1]} tokens takes {wanted} slots, {native.buckets[-1]} are most"
            )
        return self._run(native_inputs(native, pixels, slots, bucket))[slots]

    def _run(self, inputs: dict[str, Array]) -> Floats:
        (rows,) = run_unbound("vision", self._session, [FEATURES], inputs)
        return np.asarray(rows, np.float32)


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
    rows, columns = pixels.shape[1] // native.cell, pixels.shape[2] // native.cell
    apart = pixels.reshape(3, rows, merge, patch, columns, merge, patch)
    cells = apart.transpose(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns, merge**2, 3 * patch**2)
    patches = np.zeros((bucket, *cells.shape[1:]), np.uint8)
    patches[slots] = cells
    grid = np.stack(np.meshgrid(np.arange(rows * merge), np.arange(columns * merge), indexing="ij"), axis=-1)
    inner = grid.reshape(rows, merge, columns, merge, 2).transpose(0, 2, 1, 3, 4)
    places = np.zeros((bucket, merge**2, 2), np.float32)
    places[slots] = inner.reshape(rows * columns, merge**2, 2)
    padding = np.ones((bucket, merge**2), np.float32)
    padding[slots] = 0
    return {
        PATCHES: patches.reshape(-1, patches.shape[-1]),
        PLACES: places.reshape(-1, 2),
        PADDING: padding.reshape(-1, 1),
        SPAN: np.maximum(grid[-1, -1], 1)[None].astype(np.float32),
    }
