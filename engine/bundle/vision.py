"""What a bundle says of images: how one is cut into tiles, how a prompt names it, and the graph that reads a tile."""

import re
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.specs import Name, Text, TokenId

PIXELS, FEATURES = "pixels", "image_features"  # uint8 [1, 3, side, side]; float32 [tokens, width]
# Of a graph that takes an image as patches: uint8 [P, 3 * patch ** 2], row and column [P, 2], 1 where there is none
# [P, 1], the largest row and column, at least 1 [1, 2].
PATCHES, PLACES, PADDING, SPAN = "patches", "places", "padding", "span"
EMBEDS, EMBEDDED = "inputs_embeds", "is_embedded"  # of the first linear graph: rows [1, N, hidden], 1 where they count
# Of a graph of one size, as in GenieX bundles: floats as `FixedSpec` says; what patches P see of each other [1, P, P],
# all or those of a window, HIDDEN where nothing. It gives FEATURES, and what is added behind a layer of the text apart.
PIXEL_VALUES, SEEN, SEEN_IN_WINDOW, HIDDEN = "pixel_values", "full_attention_mask", "window_attention_mask", -1000.0
# Of the text graphs beside: which rows are images' [1, N]; to the first of them the first of DEEP [T, H] is added, ...
IMAGE_ROWS, DEEP = "visual_pos_masks", re.compile(r"deepstack_visual_embeds_(\d+)")
Side = Annotated[int, Meta(ge=0, le=4096)]
Pixels = Annotated[int, Meta(ge=1, le=1 << 32)]
Colour = Annotated[float, Meta(ge=-10, le=10)]
Deviation = Annotated[float, Meta(ge=1e-6, le=10)]


def deepstack_name(layer: int) -> str:
    """What is added to the rows of an image behind a layer of the text: [1, N, hidden], 0 in all other rows."""
    return f"deepstack_{layer}"


def deep_features(layer: int) -> str:
    """The same of a pool, and as the graph of images gives it: [T, hidden]."""
    return f"deepstack_visual_embeds_{layer}"


class Cutting(StrEnum):
    """How an image becomes tiles."""

    WHOLE = "whole"  # one tile, whatever the image's shape
    GRID = "grid"  # rows and columns of tiles, then the whole image as one more; a small image is that one alone
    CANVAS = "canvas"  # the grid of tiles whose proportions are nearest, then the whole image unless it is one tile
    NATIVE = "native"  # one tile of its own proportions, as `NativeSpec` says


class Resampling(StrEnum):
    """How pixels are made of pixels; the names are Pillow's."""

    NEAREST = "nearest"
    LANCZOS = "lanczos"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class NativeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """An image in its own proportions: cells of `merge` x `merge` patches of `patch` pixels square, a token each."""

    patch: Annotated[int, Meta(ge=1, le=256)]
    merge: Annotated[int, Meta(ge=1, le=16)]
    least_pixels: Pixels  # after it is resized
    most_pixels: Pixels  # the same
    buckets: Annotated[tuple[int, ...], Meta(min_length=1, max_length=64)]  # of cells of a run, fewest first
    window: Annotated[int, Meta(ge=0, le=256)] = 0  # cells of a side of what some layers see, 0 = all

    @property
    def cell(self) -> int:
        """Pixels of a side of a cell."""
        return self.patch * self.merge

    def slots(self, rows: int, columns: int) -> int:
        """How many a grid of cells takes: windows at its edges are whole."""
        if not self.window:
            return rows * columns
        return -(-rows // self.window) * -(-columns // self.window) * self.window**2


class FixedSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a graph of one size takes: colours from 0 to 1, minus `mean`, by `std`, of each channel."""

    height: Annotated[int, Meta(ge=1, le=4096)]  # pixels
    width: Annotated[int, Meta(ge=1, le=4096)]  # pixels
    mean: tuple[Colour, Colour, Colour]
    std: tuple[Deviation, Deviation, Deviation]
    frames: Annotated[int, Meta(ge=1, le=16)] = 1  # of a patch of a native image, all alike
    theta: Annotated[float, Meta(ge=1, le=1e12)] = 1e4  # of its rotation by row and column


class VisionSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Images of a bundle whose text graphs take rows in place of tokens. The graph gives `tokens` rows for a tile of
    `side` pixels square, or those that `native` says, both then being 0."""

    file: Name
    cutting: Cutting
    side: Side
    tokens: Annotated[int, Meta(ge=0, le=1 << 16)]
    token: TokenId  # of `pad`
    placeholder: Text  # what the chat template writes for an image
    pad: Text  # stands in the prompt for each row
    resampling: Resampling = Resampling.BICUBIC
    longest: Annotated[int, Meta(ge=0, le=1 << 14)] = 0  # side of an image before it is cut, 0 = as it is
    opening: Text = ""  # before the rows of a tile
    tile_tag: Text = ""  # behind that; has {row} and {column}, from 1
    whole_tag: Text = ""  # the same of the whole image
    row_end: Text = ""  # behind a row of tiles, and once more behind all of them
    closing: Text = ""  # behind the last tile
    most_tiles: Annotated[int, Meta(ge=1, le=256)] = 1  # of a canvas, the whole image not counted
    native: NativeSpec | None = None
    deepstack: Annotated[int, Meta(ge=0, le=64)] = 0  # first layers of the text that add what is behind an image's rows
    both_ways: bool = False  # rows of a tile see each other both ways, so that all of them lie in one step
    fixed: FixedSpec | None = None  # None = the graph has free sizes
