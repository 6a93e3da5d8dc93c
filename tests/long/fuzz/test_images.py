"""Images of every form, changed at random: read or told of, through the real process that reads them."""

import logging

import numpy as np
import pytest

from engine.errors import InvalidRequest
from engine.vision.pictures import tiles_of
from engine.vision.pool import ImagePool
from engine.vision.question import Picture
from tests.engine.vision.judges import picture, saved
from tests.long.fuzz.test_sound import mutated
from tests.vision_facts import IDEFICS

MUTATIONS = 60  # of each form
PARAM = "messages[0].content[0].image_url"
SMOOTH = picture(40, 28, 1)
FORMS = {
    "png": saved(SMOOTH),
    "png of a palette": saved(SMOOTH.convert("P")),
    "jpeg": saved(SMOOTH, "JPEG"),
    "progressive jpeg": saved(SMOOTH, "JPEG", progressive=True),
    "webp": saved(SMOOTH, "WEBP"),
    "lossless webp": saved(SMOOTH, "WEBP", lossless=True),
    "gif": saved(SMOOTH, "GIF"),
}


async def test_mutated_images_are_read_or_told_of(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """420 of them in all, one process for all, and it reads on."""
    pool, random = ImagePool(IDEFICS), np.random.default_rng(11)
    read: list[str] = []
    told: list[str] = []
    with caplog.at_level(logging.WARNING):
        for form, whole in FORMS.items():
            for _ in range(MUTATIONS):
                try:
                    found = await pool.tiles(Picture(mutated(whole, random)), PARAM)
                    assert {len(tile) for tile in found.tiles} == {3 * IDEFICS.side**2}
                    read.append(form)
                except InvalidRequest as refused:
                    assert refused.param == PARAM and str(refused).startswith(f"'{PARAM}' ")
                    told.append(form)
            assert await pool.tiles(Picture(whole), PARAM) == tiles_of(Picture(whole), IDEFICS)
        assert len(pool.pids) == 1
        await pool.close()
    assert set(told) == set(FORMS) and set(read) > {"jpeg", "progressive jpeg", "gif"}
    written = capfd.readouterr()
    assert "Traceback" not in written.out + written.err
    assert caplog.records == []
