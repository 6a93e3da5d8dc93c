"""The process that reads images, `python -m engine.vision.pictures`: from their bytes to tiles, with Pillow.
An empty frame says that it is up. The first frame it reads says how images are cut, and is answered by an empty one;
then each image is one frame. What takes too long ends the process, what takes too much memory does not. Sizes follow
transformers' image processors: `SmolVLMImageProcessor` for a grid, `GotOcr2ImageProcessor` for a canvas,
`Qwen2VLImageProcessor` for images in their own proportions."""

import math
import struct
import sys
import warnings
import zlib
from io import BytesIO

import msgspec
from PIL import Image, ImageOps

from engine.bundle.vision import Cutting, NativeSpec, VisionSpec
from engine.isolation.framing import Opened, serve
from engine.vision.question import LIMITS, MEMORY_BYTES, ImageTiles, Opening, Picture, PictureLimits

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# What Pillow and the libraries below it trip over is in the client's data.
TRIPPED_OVER = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError),
    *(struct.error, zlib.error, EOFError, AssertionError),
)
MOST_SIDE = 4096  # of an image that is cut


class Refused(Exception):
    """The end of a sentence about the image."""


def tiles_of(picture: Picture, spec: VisionSpec, limits: PictureLimits = LIMITS) -> ImageTiles:
    """Decode, resize and cut an image; what is wrong with it is said in the answer."""
    try:
        return _cut(_decoded(picture.content, limits), spec, picture.is_small)
    except Refused as refused:
        return ImageTiles(error=str(refused))
    except MemoryError:
        return ImageTiles(error="takes too much memory to read.")


def _decoded(content: bytes, limits: PictureLimits) -> Image.Image:
    """An upright image of three colours."""
    try:
        image = Image.open(BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise Refused(f"has far more than {limits.pixels} pixels, the most.") from None
    except TRIPPED_OVER:
        raise Refused("is no image that can be read: PNG, JPEG, WebP and GIF can.") from None
    _check_size(*image.size, limits)
    try:
        if getattr(image, "is_animated", False) and image.format != "MPO":  # a camera's JPEG and what goes with it
            raise Refused("is animated; one frame is the most.")
        image.load()
        return _opaque(ImageOps.exif_transpose(image))
    except TRIPPED_OVER:
        raise Refused("is damaged: it cannot be read to its end.") from None


def _opaque(image: Image.Image) -> Image.Image:
    """Three colours, over white where the image lets something through."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _check_size(width: int, height: int, limits: PictureLimits) -> None:
    if not width or not height:
        raise Refused("has no pixels.")
    if max(width, height) > limits.side:
        raise Refused(f"is {width} x {height} pixels; {limits.side} is the longest side.")
    if width * height > limits.pixels:
        raise Refused(f"is {width} x {height} pixels; {limits.pixels} are the most.")
    if max(width, height) > limits.ratio * min(width, height):
        raise Refused(f"is {width} x {height} pixels; one side may be {limits.ratio} times the other at most.")


def _cut(image: Image.Image, spec: VisionSpec, is_small: bool) -> ImageTiles:
    if spec.native is not None:
        cell, fixed = spec.native.cell, spec.fixed
        width, height = (fixed.width, fixed.height) if fixed else native_size(*image.size, spec.native, is_small)
        return ImageTiles(height // cell, width // cell, (_pixels(_resized(image, width, height, spec)),))
    if spec.longest:
        image = _resized(image, *_with_longest(*image.size, spec.longest), spec)
    if spec.cutting is Cutting.WHOLE or is_small:
        return ImageTiles(tiles=(_pixels(_resized(image, spec.side, spec.side, spec)),))
    return _tiled(image, spec)


def _tiled(image: Image.Image, spec: VisionSpec) -> ImageTiles:
    """Rows and columns of tiles, then the whole; an image that is one tile is that one alone. On a canvas they lie in
    the grid whose proportions are nearest, and the whole is made of the image as it came."""
    side = spec.side
    if spec.cutting is Cutting.GRID:
        image = cut = _resized(image, *_whole_tiles(*image.size, side), spec)
    else:
        columns, rows = _nearest_canvas(*image.size, side, spec.most_tiles)
        cut = _resized(image, columns * side, rows * side, spec)
    columns, rows = cut.width // side, cut.height // side
    if rows == columns == 1:
        return ImageTiles(tiles=(_pixels(cut),))
    places = [(column * side, row * side) for row in range(rows) for column in range(columns)]
    tiles = [_pixels(cut.crop((x, y, x + side, y + side))) for x, y in places]
    return ImageTiles(rows, columns, (*tiles, _pixels(_resized(image, side, side, spec))))


def _nearest_canvas(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Columns and rows; of equals the larger one, unless its tiles have twice the image's pixels."""
    sizes = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most + 1) if columns * rows <= most]
    best, distance = (1, 1), math.inf
    for columns, rows in sorted(sizes, key=lambda size: size[0] * size[1]):
        found = abs(width / height - columns / rows)
        if found < distance or (found == distance and width * height > 0.5 * side * side * columns * rows):
            best, distance = (columns, rows), found
    return best


def native_size(width: int, height: int, native: NativeSpec, is_small: bool = False) -> tuple[int, int]:
    """The size in whole cells that keeps the proportions within the bounds of pixels, and fits one run of the graph.
    is_small: the smallest one."""
    slots = native.buckets[0 if is_small else -1]
    most = min(native.most_pixels, slots * native.cell**2)
    while True:
        found = _whole_cells(width, height, native.cell, (min(native.least_pixels, most), most))
        if native.slots(found[1] // native.cell, found[0] // native.cell) <= slots:
            return found
        most = most * 9 // 10


def _whole_cells(width: int, height: int, cell: int, bounds: tuple[int, int]) -> tuple[int, int]:
    """bounds: least and most pixels."""
    least, most = bounds
    whole = round(width / cell) * cell, round(height / cell) * cell
    if math.prod(whole) > most:
        shrink = math.sqrt(width * height / most)
        return max(cell, math.floor(width / shrink / cell) * cell), max(cell, math.floor(height / shrink / cell) * cell)
    if math.prod(whole) < least:
        growth = math.sqrt(least / (width * height))
        return math.ceil(width * growth / cell) * cell, math.ceil(height * growth / cell) * cell
    return whole


def _with_longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size whose longer side is `longest`, and the shorter one even; then within what is cut."""
    is_wide = width >= height
    width, height = _scaled(width, height, longest)
    width, height = (width, height + height % 2) if is_wide else (width + width % 2, height)
    width, height = max(width, 1), max(height, 1)
    if max(width, height) > MOST_SIDE:
        width, height = _scaled(width, height, MOST_SIDE)
    return max(width, 1), max(height, 1)


def _scaled(width: int, height: int, longest: int) -> tuple[int, int]:
    ratio = width / height
    return (longest, int(longest / ratio)) if width >= height else (int(longest * ratio), longest)


def _whole_tiles(width: int, height: int, side: int) -> tuple[int, int]:
    """The size as whole tiles: the longer side first, the shorter one from it."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return max(width, side), max(height, side)


def _resized(image: Image.Image, width: int, height: int, spec: VisionSpec) -> Image.Image:
    return image.resize((width, height), Image.Resampling[spec.resampling.name])


def _pixels(image: Image.Image) -> bytes:
    """uint8 [3, height, width]."""
    return b"".join(band.tobytes() for band in image.split())


def opened(body: bytes) -> Opened:
    """A reader that cuts images as the opening says."""
    warnings.simplefilter("ignore")  # of what is odd in a client's file
    opening = msgspec.msgpack.decode(body, type=Opening)

    def answer(question: bytes) -> bytes:
        return msgspec.msgpack.encode(tiles_of(msgspec.msgpack.decode(question, type=Picture), opening.vision))

    return Opened(b"", opening.longest_s, answer)


if __name__ == "__main__":
    try:
        sys.exit(serve(MEMORY_BYTES, opened))
    except KeyboardInterrupt:
        sys.exit(1)
