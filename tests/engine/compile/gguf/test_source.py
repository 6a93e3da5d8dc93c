"""A GGUF file compiled: the network of the checkpoint it was made of, whatever its tensors are stored as."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.bundle.manifest import Manifest
from engine.compile import source
from engine.compile.arguments import Quant
from engine.compile.gguf.source import GgufSource
from engine.compile.parity import ChainedSequence
from engine.errors import CompileError, UnsupportedModel
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
    model, checkpoint = make_oracle(family, **changes)
    folder, manifest = build(write_gguf(checkpoint, tmp_path / "model.gguf"), quant=Quant.FP32)
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


def facts(path: Path, architecture: str = "llama", **values: object) -> Path:
    """A file without tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes: dict[str, object] = {
        "embedding_length": 64,
        "block_count": 2,
        "attention.head_count": 4,
        "context_length": 256,
        "feed_forward_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    for key, value in (sizes | values).items():
        whole = key if key.startswith(("split.", "general.")) else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(whole, value)
        elif isinstance(value, str):
            writer.add_string(whole, value)
        elif isinstance(value, float):
            writer.add_float32(whole, value)
        elif isinstance(value, int):
            writer.add_uint32(whole, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architecture": "gemma3"}, "architecture 'gemma3' is not supported"),
    "no layers": ({"block_count": None}, "llama.block_count is missing"),
    "many layers": ({"block_count": 1 << 30}, "llama.block_count must be an integer from 1 to 1024"),
    "heads that differ": ({"attention.head_count": [4] * 2000}, "llama.attention.head_count must be an integer"),
    "a text": ({"embedding_length": "64"}, "llama.embedding_length must be an integer"),
    "experts": ({"expert_count": 8}, "llama.expert_count is not supported"),
    "long values": ({"attention.key_length": 16, "attention.value_length": 32}, "different lengths"),
    "odd heads": ({"attention.key_length": 15, "attention.value_length": 15}, "15 numbers cannot be turned in pairs"),
    "one of several files": ({"split.count": 3}, "one of 3 files"),
    "vectors by the mean": ({"pooling_type": 1}, "llama.pooling_type 1 is not supported .supported: 3, the last"),
    "no tensors": ({}, "has no tensor 'model.embed_tokens.weight'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_facts_that_are_refused(case: str, tmp_path: Path) -> None:
    values, reason = REFUSED[case]
    with pytest.raises(CompileError, match=reason) as caught:
        GgufSource(facts(tmp_path / "m.gguf", **values))
    assert str(caught.value).startswith("m.gguf")
    assert "\n" not in str(caught.value)


def test_yarn_and_a_tensor_that_nothing_reads_are_named(
    tiny_checkpoint: Path, build: Callable[..., Made], tmp_path: Path
) -> None:
    path = write_gguf(
        tiny_checkpoint, tmp_path / "m.gguf", change=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    )
    with pytest.raises(UnsupportedModel, match="rotary type 'yarn' is not supported"):
        build(path)
    extra = np.zeros((64, 64), np.float32)
    path = write_gguf(tiny_checkpoint, tmp_path / "n.gguf", change=lambda w: w.add_tensor("blk.0.attn_sinks", extra))
    with pytest.raises(UnsupportedModel, match=r"tensor blk\.0\.attn_sinks, which qwen3 does not use"):
        build(path)


def test_without_the_package_folders_are_still_compiled(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came to the extra later than the others."""
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    assert source.open_source(tiny_checkpoint).config["model_type"] == "qwen3"
    with pytest.raises(CompileError, match="pip install"):
        source.open_source(facts(tmp_path / "m.gguf"))
