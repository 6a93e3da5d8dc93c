"""Checkpoints made with transformers, compiled in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.compile.check.parity import bundle_logits
from tools.random_checkpoint import CHAT_TEMPLATE, byte_tokenizer

GEOMETRY = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": None,
}


@pytest.fixture
def make_oracle(tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """make(family, dtype=..., **config) -> (transformers model in float32, its saved folder)."""

    def make(family: str, dtype: str = "float32", **changes: object) -> tuple[Any, Path]:
        of_text = getattr(transformers, f"{family}TextConfig", None)  # of models for more than text
        config = (of_text or getattr(transformers, f"{family}Config"))(**(GEOMETRY | changes))
        torch.manual_seed(3)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                _randomise(name, parameter)
            for name, buffer in model.named_buffers():
                if name.endswith("layer_scalar"):
                    buffer.uniform_(0.5, 1.5)
                if name.endswith(("expert_bias", "e_score_correction_bias")):
                    buffer.normal_(0, 0.3)
        folder = tmp_path / f"{family}-checkpoint"
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        add_text_files(folder)
        if dtype == "float32":
            return model, folder
        # Read back: a cast there and back would also have rounded the rotary table, which is not a weight.
        return type(model).from_pretrained(folder, dtype=torch.float32).eval(), folder

    return make


def _randomise(name: str, parameter: torch.Tensor) -> None:
    """Values that make every part of the network matter: the library's own start is almost zero."""
    if name.endswith(("bias", "sinks")):
        parameter.normal_(0, 0.3)
    elif name.endswith("A_log"):
        parameter.uniform_(-3, 1)
    elif "norm" in name or name.endswith(("scale", ".D")):
        parameter.uniform_(0.5, 1.5)
    elif "embed" in name:
        parameter.normal_(0, 1)
    else:
        parameter.normal_(0, 1.2 * parameter.shape[1] ** -0.5)


def add_text_files(folder: Path) -> None:
    """A byte tokenizer and a template, which a saved model lacks."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def check_greedy_text(
    model: Any, source: Path, build: Callable[..., tuple[Path, Manifest]], prompt: list[int], count: int = 24
) -> Manifest:
    """In floats, our logits of the prompt and more are those of transformers' model, and so is every greedy token."""
    folder, manifest = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS, parity_tokens=24)
    text = prompt + np.random.default_rng(7).integers(0, 256, count).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([text]), use_cache=False).logits[0].numpy()
    measured = bundle_logits(folder, manifest, [text], rows=24)
    assert np.array_equal(measured.argmax(axis=1), expected.argmax(axis=1))
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    return manifest


@pytest.fixture
def prompt() -> list[int]:
    """Forty token ids."""
    return [int(token) for token in np.random.default_rng(11).integers(0, 256, 40)]
