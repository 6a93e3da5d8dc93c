"""The shipped model folder, and the network it was trained as."""

import json
import subprocess
import sys
from functools import cache

import pytest
import torch
from safetensors.torch import load_file

from engine.demo.location import demo_folder
from tools.demo_model.corpus.conversation import exchange, prompt_text
from tools.demo_model.evaluate import Examinee
from tools.demo_model.muon import orthogonal
from tools.demo_model.network import DemoNetwork, Shape

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


def test_network_gives_the_logits_of_transformers() -> None:
    config = json.loads((demo_folder() / "config.json").read_text())
    shape = Shape(**{name: config[name] for name in Shape.__dataclass_fields__})
    network = DemoNetwork(shape)
    weights = load_file(demo_folder() / "model.safetensors")
    network.load_state_dict({name.removeprefix("model."): tensor.float() for name, tensor in weights.items()})
    tokens = torch.arange(9, 73).view(2, 32)
    with torch.inference_mode():
        ours = network(tokens, torch.arange(64)).view(2, 32, -1)
        theirs = _examinee().model(tokens).logits
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_orthogonal_update_has_singular_values_near_one() -> None:
    matrices = torch.randn(2, 48, 16, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.5
