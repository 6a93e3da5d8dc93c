"""The models that every other test here reads: published under these names, and whole."""

from pathlib import Path

import httpx
import pytest

from engine.compile.sources.gguf.header import read_header
from engine.sources.packaged import catalogue
from tests.live import serving
from tests.real.conftest import fetched
from tools.real_models.fetch import RealModels


@pytest.mark.parametrize(
    ("name", "architecture", "layers"), [("smollm2", "llama", 30), ("qwen_coder", "qwen2", 24), ("gemma", "gemma3", 18)]
)
def test_the_files_are_those_models(request: pytest.FixtureRequest, name: str, architecture: str, layers: int) -> None:
    fields = read_header(request.getfixturevalue(name)).metadata
    assert (fields["general.architecture"], fields[f"{architecture}.block_count"]) == (architecture, layers)


def test_every_vocabulary_has_its_expected_ids(llama_cpp_models: Path) -> None:
    expected = {path.name.removesuffix(".gguf.inp") for path in llama_cpp_models.glob("ggml-vocab-*.gguf.inp")}
    assert len(expected) >= 15
    assert {name for name in expected if not (llama_cpp_models / f"{name}.gguf.out").is_file()} == set()
    assert len(list((llama_cpp_models / "templates").glob("*.jinja"))) >= 63


def test_the_encoder_is_a_folder_of_sentence_transformers(minilm: Path) -> None:
    assert {"config.json", "modules.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in minilm.iterdir()
    }


@pytest.mark.parametrize("name", sorted({*catalogue()} - {"qwen-coder"}))  # which tests/real/test_run.py serves
def test_the_catalogue_says_what_the_files_say(real_models: RealModels, name: str, bundle_cache: Path) -> None:
    """What a model can do as `/v1/models` reads it from its files; its licence where a file has one."""
    entry, place = catalogue()[name], fetched(real_models, name)
    if place.suffix == ".gguf":
        assert read_header(place).metadata.get("general.license", "apache-2.0") == entry.licence.lower()
    elif (card := place / "README.md").is_file():
        assert f"license: {entry.licence.lower()}" in card.read_text(encoding="utf-8")
    with serving(str(place), cache=bundle_cache) as server:
        (model,) = httpx.get(f"{server.url}/v1/models", timeout=60).json()["data"]
    assert set(model["meta"]["capabilities"]) == set(entry.abilities)
