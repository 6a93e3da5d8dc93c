"""Where the rows of images stand in a prompt: text in place of the template's placeholders, then indices of tokens.

Texts follow transformers' processors: `SmolVLMProcessor` for a grid, `Qwen2_5_VLProcessor` for an image in its own
proportions.
"""

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from engine.bundle.vision import Cutting, VisionSpec
from engine.errors import InvalidRequest
from engine.request import ImagePrompt, PromptImage
from engine.vision.question import ImageTiles

DIGEST_BYTES = 32


def placed_text(rendered: str, spec: VisionSpec, images: Sequence[ImageTiles]) -> str:
    """What the template rendered, with the text of an image for each placeholder.

    InvalidRequest when there are not as many of these as images: the template leaves some out, or writes its own.
    """
    pieces = rendered.split(spec.placeholder)
    if len(pieces) != len(images) + 1:
        raise InvalidRequest(
            f"The chat template of this model has a place for {len(pieces) - 1} of {len(images)} images.", "messages"
        )
    texts = [_image_text(spec, image) for image in images]
    return "".join(piece for pair in zip(pieces, [*texts, ""], strict=True) for piece in pair)


def placed_prompt(ids: tuple[int, ...], spec: VisionSpec, images: Sequence[ImageTiles]) -> ImagePrompt:
    """Tokens whose placeholders are the tiles in order."""
    tiles = [(tile, _tokens(spec, image), _grid(spec, image)) for image in images for tile in image.tiles]
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


def _grid(spec: VisionSpec, image: ImageTiles) -> tuple[int, int]:
    return (0, 0) if spec.native is None else (image.rows, image.columns)


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
    """The first index of every tile of so many tokens; those of neighbours without a token between them follow each
    other. Fewer where one is cut short."""
    index = 0
    for count in counts:
        while index < len(ids) and ids[index] != token:
            index += 1
        if ids[index : index + count] != (token,) * count:
            return
        yield index
        index += count
