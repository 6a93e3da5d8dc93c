"""The shipped model folder, and the network it was trained as."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.demo.location import demo_folder
from tools.demo_model.corpus.conversation import exchange, prompt_text
from tools.demo_model.evaluate import Examinee
from tools.demo_model.network import logits_at, new_network, save_model

_FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "README.md",
}


@cache
def _examinee() -> Examinee:
    return Examinee(demo_folder())


def _answer(question: str) -> str:
    return _examinee().answers([prompt_text(exchange(question, "?"))], 48)[0]


def test_folder_is_complete_and_small() -> None:
    files = {path.name: path.stat().st_size for path in demo_folder().iterdir()}
    assert set(files) == _FILES
    assert sum(files.values()) < 16 * 1024 * 1024


def test_finding_the_folder_loads_nothing_heavy() -> None:
    code = "import sys, engine.demo.location; sys.exit(int(any(name in sys.modules for name in ('torch', 'numpy'))))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_model_knows_the_capital_of_france() -> None:
    assert "Paris" in _answer("What is the capital of France?")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is 12 + 34?", "46"),
        ("Repeat this list: apple, tree, car, lamp", "apple, tree, car, lamp"),
        ("Who are you?", "hexserve"),
    ],
)
def test_model_answers_in_its_domain(question: str, expected: str) -> None:
    assert expected in _answer(question)


def test_logits_are_read_at_the_chosen_positions() -> None:
    model, tokens = _examinee().model, torch.arange(9, 73).view(2, 32)
    causal = torch.ones(32, 32, dtype=torch.bool).tril().expand(2, 1, 32, 32)
    positions = torch.arange(32).expand(2, 32)
    with torch.inference_mode():
        wanted = model(tokens).logits.flatten(0, 1)[[3, 40]]
        for more in ((), (positions, causal)):
            torch.testing.assert_close(logits_at(model, tokens, torch.tensor([3, 40]), *more), wanted)


def test_what_training_starts_from_says_nothing_yet_and_is_saved_as_a_model(tmp_path: Path) -> None:
    network = new_network(64)
    hidden = network.model(torch.tensor([[5, 6]]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(hidden[0], hidden[-2])  # every layer is the identity
    save_model(network, network.state_dict(), tmp_path, {"model_type": "other"})
    config, generation = (json.loads((tmp_path / f"{name}config.json").read_text()) for name in ("", "generation_"))
    assert (config["model_type"], config["vocab_size"], config["tie_word_embeddings"]) == ("other", 64, True)
    assert generation["eos_token_id"] == [2, 0]
    assert load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"].dtype == torch.bfloat16
