"""A few steps of training give a checkpoint that transformers and the compiler read."""

import json
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.compile.source import open_source
from engine.demo.english.train import English, token_stream, tokenizer_of, train_english, window_stream
from engine.demo.network import END_OF_TEXT, Shape
from engine.demo.train import Plan
from engine.models.family import read_network

WORDS = ("the ", "manual ", "of ", "a ", "system ", "says ", "what ", "its ", "programs ", "do ", "and ", "how ")
SHAPE = Shape(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=1,
              num_key_value_heads=1)  # fmt: skip


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = Random(0)
    folder = tmp_path / "text"
    folder.mkdir()
    pages = ["".join(rng.choices(WORDS, k=120)) for _ in range(40)]
    lines = (json.dumps({"name": f"page-{number}", "text": page}) + "\n" for number, page in enumerate(pages))
    (folder / "training.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.long
def test_training_writes_a_checkpoint_and_goes_on_from_it(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "checkpoint"
    english = English(text, context=32, most=10_000)
    train_english(Plan(0.03, out, 1, 256, 60, None, half=True), english, SHAPE)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    steps = torch.load(out / "state.pt", weights_only=True)["steps"]
    assert steps > 0
    assert model(torch.tensor([[5, 6, 7]])).logits.shape == (1, 3, 320)
    spec = read_network(open_source(out).config, 0).spec
    assert (spec.layers, spec.hidden, spec.vocab) == (1, 64, 320)
    train_english(Plan(0.03, out, 1, 256, 60, out / "state.pt", half=True), english, SHAPE)
    assert torch.load(out / "state.pt", weights_only=True)["steps"] > steps


def test_windows_predict_the_next_token_and_depend_on_the_step_alone(tmp_path: Path) -> None:
    tokens = torch.arange(1000)
    stream = window_stream(tokens, 16, seed=3, tokens_per_step=64, first=0)
    first, second = next(stream), next(stream)
    again = next(window_stream(tokens, 16, seed=3, tokens_per_step=64, first=1))
    assert [batch.tokens.tolist() for batch in second] == [batch.tokens.tolist() for batch in again]
    assert sum(batch.tokens.numel() for batch in first) == 64
    for batch in first:
        assert torch.equal(batch.targets, batch.tokens.flatten() + 1)
        assert torch.equal(batch.chosen, torch.arange(batch.tokens.numel()))


def test_texts_become_one_stream(tmp_path: Path) -> None:
    texts = ["one manual", "two programs"]
    tokenizer = tokenizer_of(texts * 20, tmp_path, 300)
    stream = token_stream(tokenizer, texts).tolist()
    assert stream.count(END_OF_TEXT) == 2
    assert tokenizer.decode(stream) == "one manualtwo programs"
    assert tokenizer_of(["other"], tmp_path, 400).get_vocab() == tokenizer.get_vocab()
