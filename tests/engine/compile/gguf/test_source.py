"""A GGUF file compiled: the network of the checkpoint it was made of, whatever its tensors are stored as."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Quant
from engine.compile.parity import ChainedSequence
from tests.engine.compile.gguf.gguf_files import write_gguf
from tests.engine.compile.test_transformers_parity import LINEAR, LLAMA3, greedy, oracle_logits

Made = tuple[Path, Manifest]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-all-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-own-head-dim": ("Llama", {"head_dim": 24}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_and_logits_are_those_of_the_checkpoint(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., Made],
    prompt: list[int],
    tmp_path: Path,
) -> None:
    family, changes = CASES[case]
    model, source = make_oracle(family, **changes)
    folder, manifest = build(write_gguf(source, tmp_path / "model.gguf"), quant=Quant.FP32)
    assert manifest.model.family == family.lower()
    text, measured = greedy(ChainedSequence.start(folder, manifest, None), prompt, 24)
    expected = oracle_logits(model, text[:-1])
    assert text[len(prompt) :] == [int(token) for token in expected.argmax(axis=1)[len(prompt) - 1 :]]
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.BF16])
@pytest.mark.parametrize("quant", [Quant.FP32, Quant.INT4])
def test_weights_are_those_of_the_safetensors_folder_to_the_byte(
    tiny_checkpoint: Path, build: Callable[..., Made], tmp_path: Path, kind: GGMLQuantizationType, quant: Quant
) -> None:
    """Its tensors are bfloat16, which both types hold."""
    _, expected = build(tiny_checkpoint, quant=quant)
    _, manifest = build(write_gguf(tiny_checkpoint, tmp_path / "tiny.gguf", kind), quant=quant)
    weights = {name: entry for name, entry in expected.files.items() if name.endswith(".data")}
    assert weights
    assert weights.items() <= manifest.files.items()
    assert manifest.model == expected.model
    assert (manifest.name, manifest.source) == ("tiny", "tiny")
