"""A tiny Qwen3.5 of random weights, made and judged by transformers, and a bundle of it.

torch is imported where it is used: every test loads this file.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.arguments import CompileArguments, KvType, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress

TINY: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
    "eos_token_id": 258,
}


def make_hybrid(folder: Path, gain: float = 1.0, family: str = "Qwen3_5", **changes: Any) -> Any:
    """Save a checkpoint; the transformers model in float32. gain: of what layers add to the text's stream.

    With 1 random layers make chaos of every rounding; with less, what rounding costs can be told.
    """
    import torch
    import transformers

    from tests.engine.compile.conftest import add_text_files

    config = getattr(transformers, f"{family}TextConfig")(**(TINY | changes))
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomise(name, parameter)
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.mul_(gain)
    model.save_pretrained(folder)
    add_text_files(folder)
    return model


def _randomise(name: str, parameter: Any) -> None:
    """Values that make every part matter: norms are around 1 + w, a head's decay and step are its own."""
    if name.endswith("A_log"):
        parameter.uniform_(-3, 1)
    elif name.endswith("bias"):
        parameter.normal_(0, 0.5)
    elif "linear_attn.norm" in name:
        parameter.uniform_(0.5, 1.5)
    elif "norm" in name:
        parameter.uniform_(-0.5, 0.5)
    elif "embed" in name:
        parameter.normal_(0, 1)
    elif "conv1d" in name:
        parameter.normal_(0, 0.5)
    else:
        parameter.normal_(0, 1.2 * parameter.shape[1] ** -0.5)


@dataclass(frozen=True)
class Hybrid:
    """The model, its checkpoint, and an fp32 bundle of it."""

    model: Any
    source: Path
    bundle: Path

    def logits(self, tokens: list[int] | tuple[int, ...]) -> np.ndarray:
        """transformers' logits [tokens, vocab] of one causal step."""
        return oracle_logits(self.model, list(tokens))

    @lru_cache  # noqa: B019 - one object a session
    def greedy(self, prompt: tuple[int, ...], count: int) -> list[int]:
        """What transformers answers, every token from the whole text again."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]


def oracle_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """[tokens, vocab]."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def text_of(count: int, seed: int = 5) -> tuple[int, ...]:
    """Token ids."""
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, 256, count))


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Hybrid:
    """One for all tests."""
    folder = tmp_path_factory.mktemp("hybrid")
    model = make_hybrid(folder / "checkpoint")
    arguments = CompileArguments(folder / "checkpoint", folder / "bundle", quant=Quant.FP32, parity_tokens=8)
    compile_bundle(arguments, SilentProgress())
    return Hybrid(model, folder / "checkpoint", folder / "bundle")


@pytest.fixture(scope="session")
def int4_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Hybrid:
    """As compiled by default: int4 with a wide storage, keys and values in int8."""
    folder = tmp_path_factory.mktemp("hybrid-int4")
    model = make_hybrid(folder / "checkpoint", gain=0.4)
    arguments = CompileArguments(folder / "checkpoint", folder / "bundle", parity_tokens=200)
    assert compile_bundle(arguments, SilentProgress()).kv_dtype == KvType.INT8
    return Hybrid(model, folder / "checkpoint", folder / "bundle")
