"""Images as clients give them: where they stand in the messages, their bytes, and their rows in a prompt."""

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from engine.bundle.vision import Cutting, VisionSpec
from engine.errors import InvalidRequest
from engine.request import ImagePrompt, PromptImage
from engine.vision.question import LIMITS, ImageTiles, Picture

MOST_IMAGES = 64  # of a request
DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,64}(;[^;,]{1,64}){0,4};base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GivenImage:
    """url: as the client wrote it. param: the field. detail: how closely it is looked at."""

    url: str
    param: str
    detail: str = "auto"

    def picture(self) -> Picture:
        """Its bytes. InvalidRequest naming the field when it is no data URL, no base64, or too large."""
        head = DATA_URL.match(self.url)
        if head is None:
            wanted = "a data URL with an image in base64; this server takes none from elsewhere (setting `media`)"
            raise InvalidRequest(f"'{self.param}' must be {wanted}.", self.param)
        encoded = self.url[head.end() :].replace("\n", "").replace("\r", "")  # as `base64` breaks it into lines
        if len(encoded.rstrip("=")) * 3 // 4 > LIMITS.most_bytes:
            raise InvalidRequest(f"'{self.param}' is larger than {LIMITS.most_bytes} bytes.", self.param)
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(f"'{self.param}' is not base64.", self.param) from None
        return Picture(content, is_small=self.detail == "low")


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[GivenImage]:
    """The images of a chat in order. InvalidRequest when there are too many."""
    found: list[GivenImage] = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str) or not isinstance(content, Sequence):
            continue
        for index, part in enumerate(content):
            if isinstance(part, Mapping) and part.get("type") == "image":
                param = part.get("param") or f"messages[{number}].content[{index}].image_url"
                found.append(GivenImage(part["url"], param, part.get("detail") or "auto"))
    if len(found) > MOST_IMAGES:
        raise InvalidRequest(f"The messages have {len(found)} images, {MOST_IMAGES} are the most.", "messages")
    return found


Part = Mapping[str, Any]


def without_pixels(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as a template reads them: it is told that there is an image, and nothing of it."""
    return with_images(messages, lambda _: {"type": "image"})


def with_images(messages: Sequence[Mapping[str, Any]], changed: Callable[[Part], Part]) -> list[dict[str, Any]]:
    return [dict(message) | {"content": _changed(message.get("content"), changed)} for message in messages]


def _changed(content: Any, changed: Callable[[Part], Part]) -> Any:
    if isinstance(content, str) or not isinstance(content, Sequence):
        return content
    return [changed(part) if isinstance(part, Mapping) and part.get("type") == "image" else part for part in content]


DIGEST_BYTES = 32


def placed_text(rendered: str, spec: VisionSpec, images: Sequence[ImageTiles]) -> str:
    """What the template rendered, with the text of an image for each placeholder.
    InvalidRequest when there are not as many of these as images: the template leaves some out, or writes its own."""
    pieces = rendered.split(spec.placeholder)
    if len(pieces) != len(images) + 1:
        places = f"{len(pieces) - 1} of {len(images)} images"
        raise InvalidRequest(f"The chat template of this model has a place for {places}.", "messages")
    return pieces[0] + "".join(
        _image_text(spec, image) + piece for image, piece in zip(images, pieces[1:], strict=True)
    )


def placed_prompt(ids: tuple[int, ...], spec: VisionSpec, images: Sequence[ImageTiles]) -> ImagePrompt:
    """Tokens whose placeholders are the tiles in order."""
    grids = [(0, 0) if spec.native is None else (image.rows, image.columns) for image in images]
    tiles = [(t, _tokens(spec, each), grid) for each, grid in zip(images, grids, strict=True) for t in each.tiles]
    firsts = list(_runs(ids, spec.token, [tokens for _, tokens, _ in tiles]))
    places, wanted = ids.count(spec.token), sum(tokens for _, tokens, _ in tiles)
    if len(firsts) != len(tiles) or places != wanted:
        raise InvalidRequest(f"The prompt has places for {places} of {wanted} rows of images.", "messages")
    placed = (
        PromptImage(first, tokens, _digest(tile, grid), tile, grid=grid, both_ways=spec.both_ways)
        for first, (tile, tokens, grid) in zip(firsts, tiles, strict=True)
    )
    return ImagePrompt(ids, tuple(placed))


def _tokens(spec: VisionSpec, image: ImageTiles) -> int:
    return spec.tokens if spec.native is None else image.rows * image.columns


def _digest(tile: bytes, grid: tuple[int, int]) -> bytes:
    return blake2b(tile, digest_size=DIGEST_BYTES, salt=struct.pack("<II", *grid)).digest()


def _image_text(spec: VisionSpec, image: ImageTiles) -> str:
    pads = spec.pad * _tokens(spec, image)
    if spec.cutting is not Cutting.GRID:
        return spec.opening + spec.whole_tag + pads * len(image.tiles) + spec.closing
    rows = []
    for row in range(1, image.rows + 1):
        tags = (spec.tile_tag.format(row=row, column=column) for column in range(1, image.columns + 1))
        rows.append("".join(spec.opening + tag + pads for tag in tags) + spec.row_end)
    behind = spec.row_end if rows else ""
    return "".join(rows) + behind + spec.opening + spec.whole_tag + pads + spec.closing


def _runs(ids: tuple[int, ...], token: int, counts: Sequence[int]) -> Iterator[int]:
    """The first index of every tile of so many tokens, neighbours without a token between; fewer where one is cut."""
    index = 0
    for count in counts:
        while index < len(ids) and ids[index] != token:
            index += 1
        if ids[index : index + count] != (token,) * count:
            return
        yield index
        index += count
