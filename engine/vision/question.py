"""What the process that reads images is asked and what it answers: MessagePack, as frames of a helper."""

from dataclasses import dataclass

import msgspec

from engine.bundle.vision import VisionSpec


class Opening(msgspec.Struct, frozen=True):
    """What a reader is for. longest_s bounds each image."""

    vision: VisionSpec
    longest_s: float


class Picture(msgspec.Struct, frozen=True):
    """An image as a client sent it. is_small: one tile is enough (`detail` is low)."""

    content: bytes
    is_small: bool = False


class ImageTiles(msgspec.Struct, frozen=True):
    """The tiles of an image, uint8 [3, side, side] each: `rows` times `columns`, then the whole image.
    Of an image in its own proportions there is one, of `rows` times `columns` cells.
    error: the end of a sentence that begins with the field's name; then there are none."""

    rows: int = 0
    columns: int = 0
    tiles: tuple[bytes, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Of one image. ratio: its longer side to its shorter one."""

    most_bytes: int = 20 * 1024 * 1024
    pixels: int = 50_000_000
    side: int = 16_384
    ratio: int = 200


LIMITS = PictureLimits()
MEMORY_BYTES = 2 * 1024**3  # of address space; an image of the most pixels takes a third of it
