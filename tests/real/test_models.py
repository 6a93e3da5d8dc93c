"""The models that every other test here reads: published under these names, whole, and readable by others."""

from pathlib import Path

import pytest
from gguf import GGUFReader


@pytest.mark.parametrize(("name", "architecture", "layers"), [("smollm2", "llama", 30), ("qwen_coder", "qwen2", 24)])
def test_the_files_are_those_models(request: pytest.FixtureRequest, name: str, architecture: str, layers: int) -> None:
    fields = GGUFReader(request.getfixturevalue(name)).fields
    assert fields["general.architecture"].contents() == architecture
    assert fields[f"{architecture}.block_count"].contents() == layers


def test_every_vocabulary_has_its_expected_ids(llama_cpp_models: Path) -> None:
    expected = {path.name.removesuffix(".gguf.inp") for path in llama_cpp_models.glob("ggml-vocab-*.gguf.inp")}
    assert len(expected) >= 15
    assert {name for name in expected if not (llama_cpp_models / f"{name}.gguf.out").is_file()} == set()
    assert len(list((llama_cpp_models / "templates").glob("*.jinja"))) >= 63


def test_the_encoder_is_a_folder_of_sentence_transformers(minilm: Path) -> None:
    assert {"config.json", "modules.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in minilm.iterdir()
    }
