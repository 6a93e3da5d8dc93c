"""Folders of GenieX that read images: transformers' tokens, DeepStack included, with images of several in a step."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine.bundle.check import check_contract
from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.compile.graphs.native_vision import SizedWriter
from tests.engine.vision.judges import greedy, picture
from tests.genie.generator import Recipe, generate
from tests.genie.seeing import add_encoder, answers, prompt_of
from tests.genie.twin import convert_to_twin
from tests.vision_facts import SIDE
from tests.vision_models import write_internvl, write_qwen_vl

COUNT = 8
SHAPES = (StepShape(1, 255), StepShape(8, 248))
ONE = Recipe(parts=1, precision="twin", table="float32", shapes=SHAPES, context_tokens=256)
CUT = Recipe(parts=3, precision="twin", table="float32", shapes=SHAPES, context_tokens=256, head_alone=True)
MODELS: dict[str, Any] = {"Qwen3VL": write_qwen_vl, "Qwen2_5_VL": write_qwen_vl, "qwen2": write_internvl}
Question = list[int | Image.Image]


def questions(side: int) -> dict[str, Question]:
    """Images as large as the graph takes them: nobody resizes them."""
    first, second, third = (picture(side, side, seed) for seed in (1, 2, 3))
    return {"a": [5, first, 17, 99], "b": [7, 8, 9, second, 30], "c": [40, 41], "d": [11, third, 12, first, 13]}


def served_and_expected(
    folder: Path, family: str, recipe: Recipe
) -> tuple[Path, dict[str, Question], dict[str, list[int]]]:
    """Convert a generated folder at folder / cache; the bundle, questions, and transformers' tokens."""
    model = MODELS[family](folder / "source", family)
    made = generate(folder / "source", folder / "bundle", recipe)
    spec = add_encoder(made, folder / "source")
    bundle = convert_to_twin(made, folder / "cache")
    asked = questions(64 if spec.native else SIDE)
    expected = {}
    for name, pieces in asked.items():
        ids, _ = prompt_of(spec, pieces)
        expected[name] = greedy(model, ids, [piece for piece in pieces if not isinstance(piece, int)], COUNT)
    return bundle, asked, expected


@pytest.mark.parametrize(
    ("family", "recipe"), [("Qwen3VL", ONE), ("Qwen3VL", CUT), ("Qwen2_5_VL", ONE), ("qwen2", ONE)]
)
def test_tokens_are_those_of_transformers(tmp_path: Path, family: str, recipe: Recipe) -> None:
    """64 rows of an image over steps of 8, those of DeepStack with them, beside other questions and alone."""
    folder, asked, expected = served_and_expected(tmp_path, family, recipe)
    manifest = load_manifest(folder)
    check_contract(manifest)
    assert manifest.vision is not None and manifest.vision.deepstack == (2 if family == "Qwen3VL" else 0)
    assert answers(folder, asked, COUNT) == expected
    assert answers(folder, {"b": asked["b"]}, COUNT)["b"] == expected["b"]


def test_cells_that_come_window_after_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Early exports leave the order of Qwen2.5-VL's cells to the host: the graph itself tells."""
    monkeypatch.setattr(SizedWriter, "ordered", lambda self, x, width, is_reverse: x)
    folder, asked, expected = served_and_expected(tmp_path, "Qwen2_5_VL", ONE)
    assert answers(folder, asked, COUNT) == expected
