"""Rows of images among those of a text, which integer graphs are observed on."""

from pathlib import Path

import numpy as np
import pytest

from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.graphs.integer_graphs import SQUARES, pictures, with_image
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.errors import CompileError
from tests.vision_models import write_gemma3


@pytest.mark.parametrize(("count", "taken"), [(3, [0, 1, 2]), (8, [0, 2, 4, 6])])
def test_an_image_in_the_middle_of_a_text(count: int, taken: list[int]) -> None:
    """As many rows as half of the text has, from all over the image."""
    text, image = np.zeros((8, 2), np.float32), 1 + np.repeat(np.arange(count, dtype=np.float32)[:, None], 2, axis=1)
    found = with_image(text, image)
    assert found[2 : 2 + len(taken), 0].tolist() == [1 + row for row in taken]
    assert not found[:2].any() and not found[2 + len(taken) :].any() and not text.any()


def test_pictures_from_one_colour_to_noise() -> None:
    shown = list(pictures(48, 32))
    assert [picture.shape for picture in shown] == [(3, 48, 32)] * len(SQUARES)
    colours = [len(np.unique(picture.reshape(3, -1).T, axis=0)) for picture in shown]
    assert colours[:3] == [1, 4, 16] and colours == sorted(colours)


def test_a_step_too_small_for_an_image_is_told_before_anything_is_made(tmp_path: Path) -> None:
    write_gemma3(tmp_path / "source")
    small = CompileArguments(
        tmp_path / "source", tmp_path / "out", target=Target.X_ELITE, quant=Quant.FP16, rows=(1, 8), context=(128,)
    )
    with pytest.raises(CompileError, match="--rows 8 is too few: an image of this model takes 16 rows of one step"):
        compile_bundle(small, SilentProgress())
    assert not small.output.exists()
