"""The texts beside the embedded models are those that the corpus makes."""

from pathlib import Path

import pytest

from engine.demo.location import CALIBRATION, HELD_OUT, shipped_texts
from tools.demo_model import texts


@pytest.mark.parametrize(("path", "name"), [(CALIBRATION, "calibration"), (HELD_OUT, "held_out")])
def test_files_are_what_the_corpus_makes(path: Path, name: str) -> None:
    made = list(getattr(texts, name)())
    assert path.read_text(encoding="utf-8") == texts.lines(iter(made))
    assert list(shipped_texts(path)) == made


def test_nothing_is_asked_in_both() -> None:
    held_out, calibration = ("".join(shipped_texts(path)) for path in (HELD_OUT, CALIBRATION))
    assert len(held_out) > 10_000
    assert len(calibration) > 50_000
    asked = {line for line in held_out.split("<|im_start|>") if line.startswith("user") and "capital" in line}
    assert asked
    assert not asked & set(calibration.split("<|im_start|>"))
