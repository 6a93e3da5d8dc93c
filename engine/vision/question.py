"""What the process that reads images is asked and what it answers, as values and as frames."""

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

    error: the end of a sentence that begins with the field's name; then there are none.
    """

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
Message = Opening | Picture | ImageTiles

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The body of a frame."""
    return _encoder.encode(message)


def decode_opening(body: bytes) -> Opening:
    """The value of `encode`."""
    return msgspec.msgpack.decode(body, type=Opening)


def decode_picture(body: bytes) -> Picture:
    """The value of `encode`."""
    return msgspec.msgpack.decode(body, type=Picture)


def decode_tiles(body: bytes) -> ImageTiles:
    """The value of `encode`."""
    return msgspec.msgpack.decode(body, type=ImageTiles)
