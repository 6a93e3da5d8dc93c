"""Granite 4: what its config says of Mamba2 layers, and what is refused by name."""

from typing import Any

import pytest

from engine.bundle.specs import RecurrentKind
from engine.errors import CompileError
from engine.models.family import read_network

# As granite-4.0-h-tiny is published.
TINY: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "vocab_size": 100_352,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "shared_intermediate_size": 1024,
    "num_hidden_layers": 40,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "position_embedding_type": "nope",
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "mamba_n_heads": 48,
    "mamba_n_groups": 1,
    "mamba_d_state": 128,
    "mamba_d_head": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "time_step_limit": [0.0, float("inf")],
    "tie_word_embeddings": True,
}


def test_geometry_and_memory_of_a_published_model() -> None:
    spec = read_network(TINY, 8192).spec
    recurrent = spec.recurrent
    assert recurrent is not None and recurrent.kind is RecurrentKind.MAMBA2
    assert spec.attention_layers == (5, 15, 25, 35) and spec.rope_of(5) is None
    assert (recurrent.channels, recurrent.inputs, recurrent.columns) == (3072 + 2 * 128, 3072 + 3328 + 48, 6)
    assert recurrent.memory_bytes == 36 * 48 * 128 * 64 * 4
    assert spec.parameters == pytest.approx(6.94e9, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": None}, "layer_types must name 40 layers"),
        ({"layer_types": ["mamba"] * 40}, "no layer has attention"),
        ({"layer_types": ["conv"] * 40}, "layer type 'conv' is not supported"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias is not supported"),
        ({"time_step_limit": [0.0, 0.5]}, r"time_step_limit \[0.0, 0.5\] is not supported"),
        ({"mamba_d_head": 32}, r"3072 values of a Mamba2 layer are not mamba_n_heads \(48\) times"),
        ({"mamba_n_groups": 5}, "48 value heads are no multiple of 5 key heads"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        read_network(TINY | changes)
