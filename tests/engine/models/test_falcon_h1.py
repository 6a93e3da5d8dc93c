"""Falcon-H1: a published geometry, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import CompileError
from engine.models.family import read_network

# As Falcon-H1-0.5B-Instruct is published.
SMALLEST: dict[str, Any] = {
    "architectures": ["FalconH1ForCausalLM"],
    "vocab_size": 32_784,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 16_384,
    "rope_theta": 1e11,
    "mamba_d_ssm": 1536,
    "mamba_n_heads": 24,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_head": 64,
    "mamba_d_conv": 4,
    "mamba_rms_norm": False,
    "mamba_norm_before_gate": False,
    "key_multiplier": 0.390625,
    "lm_head_multiplier": 0.0390625,
    "ssm_multipliers": [0.3535, 0.25, 0.3535, 0.5, 0.3535],
}


def test_every_layer_of_a_published_model_has_keys_and_a_state() -> None:
    spec = read_network(SMALLEST, 8192).spec
    assert spec.recurrent is not None and spec.recurrent.is_beside
    assert spec.attention_layers == spec.recurrent.layers == tuple(range(36))
    assert spec.cache_numbers == 36 * 2 * 2 * 64
    assert spec.recurrent.memory_bytes == 36 * 24 * 128 * 64 * 4
    assert spec.parameters == pytest.approx(0.521e9, rel=0.01)


def test_constants_of_ones_change_no_matrix() -> None:
    of_ones = SMALLEST | {"key_multiplier": 1.0, "ssm_multipliers": [1.0] * 5}
    assert set(read_network(SMALLEST).details.factors) == {
        "model.layers.{layer}.self_attn.k_proj",
        "model.layers.{layer}.mamba.in_proj",
    }
    assert not read_network(of_ones).details.factors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias is not supported for falcon_h1"),
        ({"projectors_bias": True}, "projectors_bias is not supported for falcon_h1"),
        ({"mamba_rms_norm": True, "mamba_norm_before_gate": True}, "mamba_norm_before_gate is not supported"),
        ({"ssm_multipliers": [1.0] * 4}, "ssm_multipliers must be a list of 5 numbers"),
        ({"key_multiplier": 0}, "key_multiplier must be a number from 1e-06"),
        ({"mamba_d_head": 32}, r"1536 values of a Mamba2 layer are not mamba_n_heads \(24\) times"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        read_network(SMALLEST | changes)
