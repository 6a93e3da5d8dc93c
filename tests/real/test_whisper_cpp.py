"""The published Whisper base as a file of whisper.cpp: the bundle of its folder, and the words of whisper.cpp."""

import json
from pathlib import Path

import numpy as np
import openai
import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine.bundle.manifest import Manifest, load_manifest
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.speech.audio_helper import decoded
from engine.speech.special_tokens import joined
from tests.clients.environments import run_client
from tests.live import serving
from tests.real.conftest import fetched
from tests.real.test_speech import MODEL, SAID, SOUNDS
from tools.real_models.fetch import RealModels
from tools.speech.ggml import words_of, write_published
from tools.speech.report import wrong_words


@pytest.fixture(scope="module")
def folder(real_models: RealModels) -> Path:
    """Of CTranslate2, with its matrices in float16."""
    return fetched(real_models, MODEL)


@pytest.fixture(scope="module")
def file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for whisper.cpp."""
    return write_published(folder, tmp_path_factory.mktemp("ggml") / "ggml-base.bin")


def test_pairs_that_are_joined_are_those_that_were_published(folder: Path) -> None:
    """In their order; the folder's own list lacks the first one."""
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = model["merges"]
    published = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    found = joined(words_of(model["vocab"]))
    assert found[0] == (b" ", b"t")
    assert found[1:] == [tuple(bytes(map(letters.__getitem__, part)) for part in merge) for merge in published]


def compiled(source: Path, output: Path) -> tuple[Path, Manifest]:
    compile_bundle(CompileArguments(source, output, quant=Quant.FP32, name="m"), SilentProgress())
    return output, load_manifest(output)


def test_the_bundle_is_that_of_the_folder(folder: Path, file: Path, tmp_path: Path) -> None:
    """Also what the file does not say: signs that nobody speaks, and which heads look at what is said."""
    expected, found = compiled(folder, tmp_path / "expected"), compiled(file, tmp_path / "found")
    assert found[1].speech == expected[1].speech
    assert {name: entry.sha256 for name, entry in found[1].files.items() if name != "tokenizer.json"} == {
        name: entry.sha256 for name, entry in expected[1].files.items() if name != "tokenizer.json"
    }


def test_no_more_words_are_wrong_than_with_whisper_cpp(file: Path, tmp_path: Path) -> None:
    """Greedily, as both do by default at temperature 0."""
    with serving(str(file), cache=tmp_path / "cache") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        ours = client.audio.transcriptions.create(
            file=SOUNDS / "harvard.opus", model="ggml-base", temperature=0, language="en"
        ).text
    samples = np.frombuffer(decoded((SOUNDS / "harvard.opus").read_bytes(), 60.0), "<i2").astype(np.float32) / 32768
    np.save(tmp_path / "samples.npy", samples)
    done = run_client("whisper_cpp", {"MODEL": str(file), "SAMPLES": str(tmp_path / "samples.npy")}, "heard.py")
    assert done.code == 0, done.errors
    wrong, words = wrong_words(SAID, ours)
    theirs, _ = wrong_words(SAID, json.loads(done.last_line()))
    assert wrong <= theirs + 0.005 * words, (ours, done.last_line())
