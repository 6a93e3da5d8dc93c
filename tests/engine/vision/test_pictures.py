"""Tiles against transformers' own image processor, and what hostile files come to."""

import struct
import zlib
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.image_transforms import convert_to_rgb
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from engine.bundle.vision import Cutting, NativeSpec
from engine.vision.pictures import native_size, tiles_of
from engine.vision.question import Picture, PictureLimits
from tests.engine.vision.judges import (
    gemma3_processor,
    internvl_processor,
    picture,
    qwen_processor,
    saved,
    smolvlm_processor,
)
from tests.vision_facts import GEMMA, INTERN, QWEN, QWEN_CELLS, SIDE
from tests.vision_facts import IDEFICS as GRID

Size = tuple[int, int]
MEAN, STD = np.array([0.5, 0.4, 0.5]).reshape(3, 1, 1), np.array([0.5, 0.5, 0.25]).reshape(3, 1, 1)


def normalised(tile: bytes) -> np.ndarray:
    """As the graph normalises it."""
    return (np.frombuffer(tile, np.uint8).reshape(3, SIDE, SIDE) / 255 - MEAN) / STD


@pytest.mark.parametrize("size", [(100, 60), (60, 100), (20, 30), (32, 32), (33, 32), (1, 90), (300, 299), (7, 1)])
@pytest.mark.parametrize("splits", [True, False])
def test_a_grid_is_what_transformers_makes(size: tuple[int, int], splits: bool) -> None:
    image = picture(*size, seed=4)
    found = tiles_of(Picture(saved(image), is_small=not splits), GRID)
    expected = smolvlm_processor(do_image_splitting=splits)([[image]])
    assert (found.rows, found.columns) == (expected["rows"][0][0], expected["cols"][0][0])
    pixels = expected["pixel_values"][0]
    assert len(found.tiles) == len(pixels)
    for tile, wanted in zip(found.tiles, pixels, strict=True):
        assert np.abs(normalised(tile) - wanted).max() < 1e-5


@pytest.mark.parametrize("size", [(100, 60), (60, 100), (20, 30), (32, 32), (200, 200), (1, 90), (300, 299), (96, 64)])
def test_a_canvas_is_what_transformers_makes(size: Size) -> None:
    image = picture(*size, seed=4)
    found = tiles_of(Picture(saved(image)), INTERN)
    expected = internvl_processor()([image])["pixel_values"]
    assert len(found.tiles) == len(expected)
    for tile, wanted in zip(found.tiles, expected, strict=True):
        assert np.abs(normalised(tile) - wanted).max() < 1e-5


@pytest.mark.parametrize("size", [(100, 60), (60, 100), (20, 30), (32, 32), (1, 90), (300, 299)])
@pytest.mark.parametrize("is_small", [True, False])
def test_one_tile_is_what_transformers_makes(size: Size, is_small: bool) -> None:
    image = picture(*size, seed=4)
    (tile,) = tiles_of(Picture(saved(image), is_small=is_small), GEMMA).tiles
    assert np.abs(normalised(tile) - gemma3_processor()([image])["pixel_values"][0]).max() < 1e-5


@pytest.mark.parametrize("size", [(100, 60), (64, 200), (7, 9), (300, 290), (500, 8)])
def test_an_image_of_its_own_proportions_is_what_transformers_makes(size: Size) -> None:
    image = picture(*size, seed=4)
    found = tiles_of(Picture(saved(image)), QWEN)
    expected = qwen_processor()(image)
    rows, columns = (int(side) // 2 for side in expected["image_grid_thw"][0][1:])
    assert (found.rows, found.columns) == (rows, columns)
    pixels = np.frombuffer(found.tiles[0], np.uint8).reshape(3, rows * 8, columns * 8)
    cells = ((pixels / 255 - MEAN) / STD).reshape(3, rows, 2, 4, columns, 2, 4).transpose(1, 4, 2, 5, 0, 3, 6)
    first_frames = np.asarray(expected["pixel_values"]).reshape(-1, 3, 2, 4, 4)[:, :, 0]
    assert np.abs(cells.reshape(-1, 3, 4, 4) - first_frames).max() < 1e-5


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 16_384), st.integers(1, 16_384), st.sampled_from([0, 4]), st.booleans())
def test_any_size_fits_a_run(width: int, height: int, window: int, is_small: bool) -> None:
    """What fits as it is has the size of `smart_resize`, the rest one that fits."""
    width, height = max(width, height // 200 + 1), max(height, width // 200 + 1)
    native = NativeSpec(14, 2, 3136, 12_845_056, (64, 128, 1024), window)
    slots = 64 if is_small else 1024
    found = native_size(width, height, native, is_small)
    rows, columns = found[1] // 28, found[0] // 28
    assert (columns * 28, rows * 28) == found
    assert 0 < native.slots(rows, columns) <= slots
    high, wide = smart_resize(height, width, 28, 3136, slots * 28**2)
    if native.slots(high // 28, wide // 28) <= slots:
        assert found == (wide, high)


def test_few_details_are_the_smallest_run() -> None:
    found = tiles_of(Picture(saved(picture(200, 200, 1)), is_small=True), QWEN)
    assert found.rows * found.columns <= QWEN_CELLS.buckets[0]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "LA", "1", "CMYK"])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_every_form_that_clients_send_is_read(mode: str, kind: str) -> None:
    if (mode == "CMYK" and kind != "JPEG") or (kind == "JPEG" and mode not in ("RGB", "L", "CMYK", "1")):
        mode = "RGB"
    found = tiles_of(Picture(saved(picture(50, 40, 1).convert(mode), kind)), GRID)
    assert not found.error
    assert {len(tile) for tile in found.tiles} == {3 * GRID.side**2}


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_what_lets_something_through_lies_on_white(mode: str) -> None:
    """As transformers has it: black writing on nothing would be black on black."""
    image = Image.new("RGBA", (50, 40), (0, 0, 0, 0))
    image.putpixel((0, 0), (9, 9, 9, 128))
    image.paste((0, 0, 0, 255), (10, 10, 20, 20))
    see_through: dict[str, Any] = {
        "P": {"transparency": 0},
        "L": {"transparency": 0},
        "RGB": {"transparency": (0, 0, 0)},
    }
    sent = saved(image.convert(mode), **see_through.get(mode, {}))
    opaque = convert_to_rgb(Image.open(BytesIO(sent)), return_numpy=True)
    assert len(np.unique(opaque)) > 1
    assert tiles_of(Picture(sent), GRID) == tiles_of(Picture(saved(Image.fromarray(opaque))), GRID)


def test_an_image_is_turned_as_its_camera_says() -> None:
    image, exif = picture(60, 40, 2), Image.Exif()
    exif[0x0112] = 6
    turned = tiles_of(Picture(saved(image, exif=exif)), GRID)
    upright = tiles_of(Picture(saved(image.transpose(Image.Transpose.ROTATE_270))), GRID)
    assert turned == upright


def test_of_a_cameras_two_images_the_first_is_read() -> None:
    """A JPEG of a phone holds a second one that says how bright the first may be."""
    image, other = picture(60, 40, 2), picture(30, 20, 3)
    both = saved(image, "MPO", save_all=True, append_images=[other])
    assert both.startswith(b"\xff\xd8") and len(both) > len(saved(image, "JPEG"))
    assert tiles_of(Picture(both), GRID) == tiles_of(Picture(saved(image, "JPEG")), GRID)


def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    """A file that claims a size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def animated() -> bytes:
    """Two frames."""
    return saved(picture(20, 20, 1), "GIF", save_all=True, append_images=[picture(20, 20, 2)])


HOSTILE = {
    "empty": (b"", "no image"),
    "text": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no image"),
    "wrong type": (saved(picture(9, 9, 1), "BMP"), "no image"),
    "bomb": (png_of(50_000, 50_000), "far more than"),
    "many pixels": (png_of(8_000, 8_000), "are the most"),
    "thin": (png_of(1, 60_000), "longest side"),
    "thin and shorter": (png_of(1, 16_000), "times the other"),
    "no width": (png_of(0, 5), "no image"),
    "without data": (png_of(50, 50), "damaged"),
    "truncated": (saved(picture(90, 90, 3))[:-900], "damaged"),
    "truncated jpeg": (saved(picture(90, 90, 3), "JPEG")[:-200], "damaged"),
    "animated": (animated(), "animated"),
    "animated webp": (
        saved(picture(20, 20, 1), "WEBP", save_all=True, append_images=[picture(20, 20, 2)]),
        "animated",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_told_of(name: str) -> None:
    content, sentence = HOSTILE[name]
    found = tiles_of(Picture(content), GRID)
    assert sentence in found.error
    assert not found.tiles


def test_bounds_are_inclusive() -> None:
    limits = PictureLimits(pixels=800, side=40, ratio=2)
    assert not tiles_of(Picture(saved(picture(40, 20, 1))), GRID, limits).error
    for size, sentence in (((41, 21), "longest side"), ((40, 21), "are the most"), ((40, 19), "times the other")):
        assert sentence in tiles_of(Picture(saved(picture(*size, seed=1))), GRID, limits).error


SEEDS = [saved(picture(24, 24, 1), kind) for kind in ("PNG", "JPEG", "WEBP", "GIF")]


@settings(max_examples=500, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=12),
    cut=st.one_of(st.none(), st.integers(1, 1 << 20)),
)
def test_mutated_files_are_read_or_told_of(seed: bytes, changes: list[tuple[int, int]], cut: int | None) -> None:
    content = bytearray(seed)
    for place, value in changes:
        content[place % len(content)] = value
    found = tiles_of(
        Picture(bytes(content[: cut % len(content) if cut else None])), GRID, PictureLimits(pixels=1 << 20)
    )
    assert bool(found.tiles) != bool(found.error)
    assert {len(tile) for tile in found.tiles} <= {3 * GRID.side**2}


def test_one_tile_is_the_whole_image() -> None:
    whole = msgspec.structs.replace(GRID, cutting=Cutting.WHOLE, longest=0)
    found = tiles_of(Picture(saved(picture(50, 200, 1))), whole)
    assert (found.rows, found.columns, len(found.tiles)) == (0, 0, 1)
