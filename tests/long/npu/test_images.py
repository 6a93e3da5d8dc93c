"""Images on an X Elite, in the HTP emulator: the answers of the CPU, of own bundles and of folders in GenieX's form."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.bundle.manifest import load_manifest
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import vision_folder
from engine.runtime.qnn.provider import EMULATOR
from tests.engine.vision.judges import greedy, picture
from tests.genie.seeing import answers, prompt_of
from tests.live import serving
from tests.long.npu.layouts import EMULATED
from tests.vision_models import write_gemma3, write_idefics3, write_internvl, write_qwen_vl
from tools.demo_vision.exam import MODEL, asked, held_out

QUESTIONS = 4  # a description, a count, a colour, a shape


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The embedded model that reads images."""
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("npu") / MODEL
    fields = {"source": vision_folder(), "output": folder, "name": MODEL, "parity_tokens": 32, **EMULATED}
    compile_bundle(CompileArguments(**fields, quant=Quant.FP16), SilentProgress())  # type: ignore[arg-type]
    yield folder


@pytest.fixture(scope="module")
def expected() -> list[str]:
    with serving("demo-vision") as server:
        return [asked(server.url, *held_out(number)) for number in range(QUESTIONS)]


def test_questions_about_images_have_the_answers_of_the_cpu(bundle: Path, expected: list[str], tmp_path: Path) -> None:
    with serving(str(bundle), cache=tmp_path) as server:
        (model,) = httpx.get(f"{server.url}/v1/models").json()["data"]
        assert model["meta"]["device"] == EMULATOR and "vision" in model["meta"]["capabilities"]
        assert [asked(server.url, *held_out(number)) for number in range(QUESTIONS)] == expected


def test_without_its_manifest_it_is_a_folder_of_geniex(bundle: Path, expected: list[str], tmp_path: Path) -> None:
    """Graphs, tables and the files of a pipeline alone."""
    folder = tmp_path / MODEL
    shutil.copytree(bundle, folder, ignore=shutil.ignore_patterns("manifest.json", "*.onnx"))
    with serving(str(folder), cache=tmp_path / "cache") as server:
        assert asked(server.url, *held_out(0)) == expected[0]


WRITERS: dict[str, Any] = {"SmolVLM": write_idefics3, "Idefics3": write_idefics3, "Gemma3": write_gemma3}
WRITERS["qwen3"] = write_internvl  # InternVL3.5


@pytest.mark.parametrize(
    ("family", "quant"),
    [(family, Quant.FP16) for family in ("Qwen3VL", "Qwen2_5_VL", "SmolVLM", "Idefics3", "qwen3", "Gemma3")]
    + [(family, Quant.W8A16) for family in ("SmolVLM", "qwen3", "Gemma3")],
)
def test_rows_of_an_image_turn_go_deep_and_see_each_other(family: str, quant: Quant, tmp_path: Path) -> None:
    """Tokens of transformers, of questions that share steps; SmolVLM has tiles, Gemma 3 rows that see both ways, also
    in layers with windows."""
    model = WRITERS.get(family, write_qwen_vl)(tmp_path / "source", family)
    fields = {**EMULATED, "source": tmp_path / "source", "output": tmp_path / "bundle", "parity_tokens": 16}
    compile_bundle(CompileArguments(**fields, quant=quant), SilentProgress())  # type: ignore[arg-type]
    spec = load_manifest(tmp_path / "bundle").vision
    assert spec is not None and spec.fixed is not None
    first, second = (picture(spec.fixed.width, spec.fixed.height, seed) for seed in (1, 2))
    questions = {"a": [5, first, 17, 99], "b": [7, second, 30], "c": [9, first, *range(20, 40), second, 11]}
    wanted = {
        name: greedy(model, prompt_of(spec, each)[0], [piece for piece in each if not isinstance(piece, int)], 4)
        for name, each in questions.items()
    }
    assert answers(tmp_path / "bundle", questions, 4) == wanted
