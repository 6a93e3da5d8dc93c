"""Gemma 3n: what its config says of layers, and what is refused by name."""

from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

from engine.compile.arguments import CompileArguments, KvType, Layout, Quant
from engine.compile.plan import check_layers, resolve_caches
from engine.errors import CompileError, UnsupportedModel
from engine.models.family import read_network

TEXT: dict[str, Any] = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": [8192] * 30,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "sliding_window": 512,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 6,
    "num_kv_shared_layers": 10,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "final_logit_softcapping": 30.0,
}
E2B = {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": TEXT}


def test_geometry_of_a_published_model() -> None:
    network = read_network(E2B, 8192)
    spec, details = network.spec, network.details
    with torch.device("meta"):
        model = Gemma3nForCausalLM(Gemma3nTextConfig(**TEXT))
    assert spec.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (spec.streams, spec.stream_width, spec.layer_inputs) == (4, 8192, 256)
    assert [spec.owner_of(layer) for layer in (18, 19, 20, 24, 29)] == [18, 19, 18, 19, 19]
    assert {(group.window, len(group.layers)) for group in spec.cache_groups} == {(512, 16), (0, 4)}
    cutoff = network.gate_cutoff(9)
    assert cutoff is not None and NormalDist().cdf(cutoff) == pytest.approx(0.95)
    assert network.gate_cutoff(10) is None
    assert details.altup is not None and details.layer_inputs is not None
    assert details.altup.spreading[2] == "model.language_model.altup_projections.2"
    assert details.altup.router == "model.language_model.layers.{layer}.altup.modality_router"
    assert "model.language_model.layers.20.self_attn.k_proj" in details.ignored


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"altup_active_idx": 1}, UnsupportedModel, "altup_active_idx 1"),
        ({"altup_correct_scale": False}, UnsupportedModel, "altup_correct_scale false"),
        ({"altup_num_inputs": 1}, CompileError, "altup_num_inputs must be an integer from 2 to 16"),
        ({"num_kv_shared_layers": 28}, UnsupportedModel, "num_kv_shared_layers"),
        ({"intermediate_size": [8192]}, CompileError, "intermediate_size must be a list of 30"),
        ({"activation_sparsity_pattern": [1.0] * 30}, CompileError, "activation_sparsity_pattern holds 1.0"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], error: type[CompileError], said: str) -> None:
    with pytest.raises(error, match=said):
        read_network(E2B | {"text_config": TEXT | changes})


def test_an_npu_and_int8_caches_are_refused_by_name(tmp_path: Path) -> None:
    network = read_network(E2B | {"text_config": TEXT | {"num_kv_shared_layers": 0}}, 8192)
    options = CompileArguments(tmp_path, tmp_path / "out", quant=Quant.W4, target="sc8380xp", rows=(1,), context=(512,))
    with pytest.raises(CompileError, match=r"several streams \(gemma3n\) needs --target cpu"):
        check_layers(options, network)
    options = CompileArguments(tmp_path, tmp_path / "out", layout=Layout.SEGMENTS, quant=Quant.INT8, kv=KvType.INT8)
    with pytest.raises(CompileError, match="--kv int8 is refused"):
        resolve_caches(options, read_network(E2B, 8192))
