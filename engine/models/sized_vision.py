"""Encoders of images for graphs of one size: which size that is, and where its patches lie."""

import math
from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.vision import Cutting, FixedSpec, NativeSpec, VisionSpec
from engine.models.vision_network import Encoder, NativeNetwork, VisionNetwork

MOST_CELLS = 16  # of a side: 256 rows of the text, as in GenieX bundles


def with_one_size(network: Encoder, context: int) -> Encoder:
    """The same for images of one size that take at most half of the context: fewer tiles, or a smaller square."""
    mean, std = (tuple(map(float, each)) for each in (network.mean, network.std))
    if isinstance(network, VisionNetwork):
        fixed = FixedSpec(network.spec.side, network.spec.side, mean, std)  # type: ignore[arg-type]
        return replace(network, spec=msgspec.structs.replace(_with_fewer_tiles(network.spec, context), fixed=fixed))
    native, cells = native_of(network.spec), MOST_CELLS
    while 2 * cells**2 > context and cells > 1:
        cells //= 2
    side = cells * native.cell
    native = msgspec.structs.replace(native, least_pixels=side**2, most_pixels=side**2, buckets=(cells**2,))
    fixed = FixedSpec(side, side, mean, std, network.frames, network.theta)  # type: ignore[arg-type]
    return replace(network, spec=msgspec.structs.replace(network.spec, native=native, fixed=fixed))


def _with_fewer_tiles(spec: VisionSpec, context: int) -> VisionSpec:
    """Where a tile more, the whole image, fits as well."""
    tiles = max(1, context // (2 * spec.tokens) - 1)
    if spec.cutting is Cutting.CANVAS:
        return msgspec.structs.replace(spec, most_tiles=min(spec.most_tiles, tiles))
    side = max(1, math.isqrt(tiles)) * spec.side
    return msgspec.structs.replace(spec, longest=min(spec.longest, side)) if spec.longest else spec


def native_of(spec: VisionSpec) -> NativeSpec:
    """How an image is cut into patches."""
    assert spec.native is not None
    return spec.native


def patches_of(network: NativeNetwork) -> int:
    """P of an image of one size."""
    fixed, patch = network.spec.fixed, native_of(network.spec).patch
    assert fixed is not None
    return fixed.height // patch * (fixed.width // patch)


def stretched_shares(network: NativeNetwork) -> NDArray[np.float64]:
    """What each place of the square table of positions counts for in each patch [P, places], cell by cell.

    The table is stretched over the image: linear between its places by row and column (transformers
    `Qwen3VLVisionModel.fast_pos_embed_interpolate`).
    """
    fixed, native, side = network.spec.fixed, native_of(network.spec), network.table_side
    assert fixed is not None
    counts = fixed.height // native.patch, fixed.width // native.patch
    rows, columns = (
        np.maximum(1 - np.abs(np.linspace(0, side - 1, count)[:, None] - np.arange(side)), 0) for count in counts
    )
    shares = rows[:, None, :, None] * columns[None, :, None, :]
    merge = native.merge
    apart = shares.reshape(counts[0] // merge, merge, counts[1] // merge, merge, side * side)
    return np.asarray(apart.transpose(0, 2, 1, 3, 4).reshape(-1, side * side))
