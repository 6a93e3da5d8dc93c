"""Tokenizer, template and end tokens of a Genie folder, wherever its era put them."""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import BundleError
from engine.genie.config import Fields, GenieConfig
from engine.genie.text import find_template, read_genie_text
from tests.engine.tiny_bundle import byte_level_tokenizer

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi {{ x }}"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]
LLAMA = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi {{ x }}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)
AFFIXES = {
    "global_prefix": "<|begin_of_text|>",
    "system_prefix": "<|start_header_id|>system<|end_header_id|>\n\n",
    "system_suffix": "<|eot_id|>",
    "user_prefix": "<|start_header_id|>user<|end_header_id|>\n\n",
    "user_suffix": "<|eot_id|>",
    "assistant_prefix": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "assistant_suffix": "<|eot_id|>",
}


def config(**changes: Any) -> GenieConfig:
    values: dict[str, Any] = {
        "binaries": (),
        "context_tokens": 0,
        "vocabulary": 0,
        "bos_id": None,
        "eos_ids": (),
        "tokenizer": "tokenizer.json",
        "stop_sequences": (),
        "position": Fields({}, "x"),
        "rope_theta": 0.0,
    }
    return GenieConfig(**{**values, **changes})


def render(template: str | None, messages: list[dict[str, str]] = TURNS) -> str:
    assert template is not None
    made = ImmutableSandboxedEnvironment().from_string(template)
    return made.render(messages=messages, add_generation_prompt=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def put(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def test_the_tokenizers_own_template_comes_first(folder: Path) -> None:
    put(folder, "metadata.json", {"genie": {"chat_template": AFFIXES}})
    put(folder, "tokenizer_config.json", {"chat_template": "inline"})
    assert find_template(folder) == "inline"
    put(folder, "tokenizer_config.json", {"chat_template": [{"name": "default", "template": "listed"}]})
    assert find_template(folder) == "listed"
    put(folder, "chat_template.jinja", "file")
    assert find_template(folder) == "file"


def test_affixes_of_the_metadata(folder: Path) -> None:
    put(folder, "metadata.json", {"genie": {"chat_template": AFFIXES}})
    assert render(find_template(folder)) == LLAMA


def test_a_default_system_prompt(folder: Path) -> None:
    affixes = {"user_prefix": "U:", "system_prefix": "S:", "system_suffix": "/", "default_system_prompt": 'say "hi"'}
    put(folder, "metadata.json", {"genie": {"chat_template": affixes}})
    template = find_template(folder)
    assert render(template, [{"role": "user", "content": "x"}]) == 'S:say "hi"/U:x'
    assert render(template, [{"role": "system", "content": "y"}]) == "S:y/"


def test_yaml_metadata(folder: Path) -> None:
    yaml = pytest.importorskip("yaml")
    put(folder, "metadata.yaml", yaml.safe_dump({"genie": {"chat_template": AFFIXES}}))
    assert render(find_template(folder)) == LLAMA


def test_prompt_json(folder: Path) -> None:
    prompts = {"prompt_system": "<s>string</s>", "prompt_user": "[string]", "prompt_assistant": "(string)"}
    put(folder, "prompt.json", {**prompts, "prompt_start": "("})
    assert render(find_template(folder)) == "<s>Be brief.</s>[Hi {{ x }}](Hello)[Bye]("


def test_the_sample_prompt_tells_the_family(folder: Path) -> None:
    put(folder, "sample_prompt.txt", LLAMA)
    assert render(find_template(folder)) == LLAMA
    put(folder, "sample_prompt.txt", "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n")
    assert (
        render(find_template(folder), TURNS[1:2]) == "<|im_start|>user\nHi {{ x }}<|im_end|>\n<|im_start|>assistant\n"
    )
    put(folder, "sample_prompt.txt", "What is gravity?")
    assert find_template(folder) is None


def test_everything_that_ends_an_answer(folder: Path) -> None:
    tokenizer = byte_level_tokenizer()
    end, turn = (tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|im_end|>"))
    put(folder, "tokenizer_config.json", {"chat_template": "{{ '<|im_end|>' }}", "eos_token": {"content": "<think>"}})
    put(folder, "generation_config.json", {"eos_token_id": [3, 4]})
    put(folder, "config.json", {"eos_token_id": 5})
    text = read_genie_text(folder, config(eos_ids=(7,), stop_sequences=("<|endoftext|>", "not a token")))
    assert set(text.spec.stop_ids) == {3, 4, 5, 7, end, turn, tokenizer.token_to_id("<think>")}
    assert text.spec.eos_token == "<think>"
    assert text.spec.stop_texts == ("not a token",)


def test_bos_by_id_and_whether_text_starts_with_it(folder: Path) -> None:
    bos = byte_level_tokenizer().token_to_id("<|endoftext|>")
    assert read_genie_text(folder, config(bos_id=bos)).spec.bos_token == "<|endoftext|>"
    assert not read_genie_text(folder, config(bos_id=bos)).spec.add_bos
    put(folder, "tokenizer_config.json", {"add_bos_token": True})
    assert read_genie_text(folder, config(bos_id=bos)).spec.add_bos
    put(folder, "tokenizer_config.json", {})
    document = json.loads((folder / "tokenizer.json").read_text())
    single = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    document["post_processor"] = {"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": single}]}
    put(folder, "tokenizer.json", document)
    assert read_genie_text(folder, config(bos_id=bos)).spec.add_bos


def test_a_tokenizer_that_does_not_fit(folder: Path) -> None:
    with pytest.raises(BundleError, match=r"gives token id \d+, genie_config.json says n-vocab 100"):
        read_genie_text(folder, config(vocabulary=100))
    with pytest.raises(BundleError, match=r"has no other\.json, which genie_config.json names as tokenizer"):
        read_genie_text(folder, config(tokenizer="models/other.json"))
