"""Hostile images through the real process that reads them: each names its part, and costs no other."""

import io
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from PIL import Image

from engine.errors import Busy, EngineFailure, InvalidRequest
from engine.isolation.helper_pool import HelperLimits
from engine.vision.pictures import tiles_of
from engine.vision.pool import LIMITS, READER, ImagePool
from engine.vision.question import MEMORY_BYTES, Picture
from tests.engine.vision.judges import picture, saved
from tests.engine.vision.test_pictures import HOSTILE
from tests.vision_facts import IDEFICS

PARAM = "messages[0].content[1].image_url"
GOOD = Picture(saved(picture(50, 40, 1)))
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a bound on address space")


@asynccontextmanager
async def reading(limits: HelperLimits = LIMITS, command: Sequence[str] = READER) -> AsyncIterator[ImagePool]:
    """A pool that ends with the block."""
    pool = ImagePool(IDEFICS, limits, command)
    try:
        yield pool
    finally:
        await pool.close()


async def refused(pool: ImagePool, asked: Picture) -> str:
    """What a client is told, without the name of the part that it begins with."""
    with pytest.raises(InvalidRequest) as caught:
        await pool.tiles(asked, PARAM)
    assert caught.value.param == PARAM
    told = str(caught.value)
    assert told.startswith(f"'{PARAM}' ") and told.endswith(".")
    return told


def large() -> Picture:
    """49 million pixels, which the limits allow: 0.6 MB that take a second and 200 MB a copy."""
    file = io.BytesIO()
    Image.new("RGB", (7000, 7000)).save(file, "PNG", compress_level=1)
    return Picture(file.getvalue())


async def test_hostile_files_are_told_of_and_one_process_reads_on() -> None:
    async with reading(HelperLimits(LIMITS.budget_s, processes=1)) as pool:
        for name, (content, sentence) in HOSTILE.items():
            assert sentence in await refused(pool, Picture(content)), name
        assert await pool.tiles(GOOD, PARAM) == tiles_of(GOOD, IDEFICS)
        assert len(pool.pids) == 1


@LINUX
async def test_the_largest_image_is_read_and_less_memory_is_told_of() -> None:
    """A bound on address space that the process is started with is kept: there the largest image does not fit."""
    bounded = ("sh", "-c", 'ulimit -v 400000; exec "$@"', "sh", *READER)
    async with reading() as pool, reading(command=bounded) as narrow:
        assert (await pool.tiles(large(), PARAM)).tiles
        (pid,) = pool.pids
        bounds = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8")
        assert re.search(rf"Max address space +{MEMORY_BYTES} ", bounds)
        assert "takes too much memory to read." in await refused(narrow, large())
        assert (await narrow.tiles(GOOD, PARAM)).tiles


FLAWED = """
import os, sys, threading
from engine.vision import pictures
from PIL import Image
read = Image.open
def opens(file, formats):
    match file.getvalue():
        case b"crash":
            os._exit(1)
        case b"hang":
            threading.Event().wait()
    return read(file, formats=formats)
Image.open = opens
sys.exit(pictures.serve(pictures.MEMORY_BYTES, pictures.opened))
"""


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"crash", "cannot be read within the limits of this server."),
        (b"hang", "takes more than 1 s to read."),
    ],
)
async def test_a_flaw_of_a_decoder_costs_its_own_request(content: bytes, sentence: str) -> None:
    """One that crashes, and one that never ends."""
    limits = HelperLimits(budget_s=1.0, processes=1)
    async with reading(limits, (sys.executable, "-P", "-c", FLAWED)) as pool:
        assert sentence in await refused(pool, Picture(content))
        assert (await pool.tiles(GOOD, PARAM)).tiles


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("raise SystemExit(1)", "the process that reads images did not start"),
        (
            "from engine.isolation.framing import HelperFrames; HelperFrames().write(b'')",
            r"Images cannot be read: the process that reads them failed \(it died\)",
        ),
    ],
)
async def test_a_process_that_cannot_be_used_is_the_servers_fault(code: str, sentence: str) -> None:
    async with reading(command=(sys.executable, "-P", "-c", code)) as pool:
        with pytest.raises(EngineFailure, match=sentence):
            await pool.tiles(GOOD, PARAM)


async def test_who_comes_while_the_server_ends_hears_so() -> None:
    async with reading() as pool:
        await pool.close()
        with pytest.raises(Busy):
            await pool.tiles(GOOD, PARAM)
