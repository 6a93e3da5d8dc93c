"""GenieX folders that read images, compiled to context binaries: transformers' tokens in the emulator."""

from pathlib import Path
from typing import Any

import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.sources.resolve import convert_folder
from tests.engine.vision.judges import greedy
from tests.genie.emulator import EMULATOR, compile_generated
from tests.genie.generator import Recipe, generate
from tests.genie.seeing import add_encoder, answers, prompt_of
from tests.genie.test_images import questions
from tests.vision_facts import SIDE
from tests.vision_models import write_internvl, write_qwen_vl

COUNT = 5
MODELS: dict[str, Any] = {"Qwen3VL": write_qwen_vl, "Qwen2_5_VL": write_qwen_vl, "qwen2": write_internvl}


@pytest.mark.skipif(not EMULATOR, reason="needs the emulator of onnxruntime-qnn, for x86-64 Linux only")
@pytest.mark.parametrize("family", MODELS)
def test_tokens_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """The encoder and the text's graph in binaries, DeepStack's rows of Qwen3-VL between them, all in float16."""
    model = MODELS[family](tmp_path / "source", family)
    recipe = Recipe(parts=1, precision="w4", table="float32", shapes=(StepShape(8, 248),)).for_emulator(256)
    made = generate(tmp_path / "source", tmp_path / "folder", recipe)
    spec = add_encoder(made, tmp_path / "source")
    compile_generated(made, tmp_path / "scratch")
    folder = convert_folder(made.folder, tmp_path / "cache")
    told = load_manifest(folder).vision
    assert told is not None and told.deepstack == (2 if family == "Qwen3VL" else 0)
    asked = questions(64 if spec.native else SIDE)
    expected = {}
    for name, pieces in asked.items():
        images = [piece for piece in pieces if not isinstance(piece, int)]
        expected[name] = greedy(model, prompt_of(spec, pieces)[0], images, COUNT)
    assert answers(folder, asked, COUNT) == expected
