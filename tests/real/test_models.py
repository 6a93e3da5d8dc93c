"""The models that every other test here reads: published under these names, and whole."""

from pathlib import Path

import pytest

from engine.compile.sources.gguf.header import read_header


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
