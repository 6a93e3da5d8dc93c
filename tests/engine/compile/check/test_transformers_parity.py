"""The compiled graphs against transformers, for every family and rotary type, also past the original window."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Quant
from tests.plain_bundle import ChainedSequence

LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10_000.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 32,
    "factor": 8.0,
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [1.5 + 0.9 * index for index in range(8)],
}
PARTIAL_LONGROPE = LONGROPE | {
    "partial_rotary_factor": 0.75,
    "short_factor": LONGROPE["short_factor"][:6],
    "long_factor": LONGROPE["long_factor"][:6],
}
PHI3 = {"original_max_position_embeddings": 32, "pad_token_id": 0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-all-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-own-head-dim": ("Llama", {"head_dim": 24}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-every-kv-head": ("Llama", {"num_key_value_heads": 4}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-longrope": ("Llama", {"rope_parameters": LONGROPE}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-bias": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "phi3-partial-longrope": ("Phi3", {"rope_parameters": PARTIAL_LONGROPE} | PHI3),
    "phi3-partial": ("Phi3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}} | PHI3),
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_and_logits(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """64 greedy tokens after a prompt longer than the original window, then all logits of that text."""
    family, changes = CASES[case]
    model, source = make_oracle(family, **changes)
    folder, manifest = build(source, quant=Quant.FP32)
    assert manifest.model.family == family.lower()
    text, measured = greedy(ChainedSequence.start(folder, manifest, None), prompt, 64)
    expected = oracle_logits(model, text[:-1])
    assert text[len(prompt) :] == [int(token) for token in expected.argmax(axis=1)[len(prompt) - 1 :]]
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


def test_longrope_short_table(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]], prompt: list[int]
) -> None:
    """A bundle made for the original window uses the short table."""
    model, source = make_oracle("Llama", rope_parameters=LONGROPE)
    folder, manifest = build(source, quant=Quant.FP32, max_context=32)
    measured = ChainedSequence.start(folder, manifest, None).extend(prompt[:30])
    expected = oracle_logits(model, prompt[:30])
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_checkpoints(
    dtype: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """Weights stored in 16 bits are read exactly."""
    model, source = make_oracle("Qwen2", dtype=dtype)
    folder, manifest = build(source, quant=Quant.FP32)
    measured = ChainedSequence.start(folder, manifest, None).extend(prompt)
    expected = oracle_logits(model, prompt)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


def test_sharded_checkpoint(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]], prompt: list[int]
) -> None:
    """Several safetensors files with an index are one checkpoint."""
    model, source = make_oracle("Llama")
    (source / "model.safetensors").unlink()
    model.save_pretrained(source, max_shard_size="150KB")
    assert len(list(source.glob("model-*.safetensors"))) > 1
    folder, manifest = build(source, quant=Quant.FP32)
    measured = ChainedSequence.start(folder, manifest, None).extend(prompt)
    expected = oracle_logits(model, prompt)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


def greedy(sequence: ChainedSequence, prompt: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """prompt + `count` greedy tokens, and the logits of all of them but the last."""
    logits = [sequence.extend(prompt)]
    text = [*prompt, int(logits[-1][-1].argmax())]
    while len(text) < len(prompt) + count:
        logits.append(sequence.extend(text[-1:]))
        text.append(int(logits[-1][-1].argmax()))
    return text, np.concatenate(logits)


def oracle_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """transformers' logits of one causal pass."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
