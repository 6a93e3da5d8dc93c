"""Nemotron-H: blocks as layers, published geometries, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import CompileError
from engine.models.family import read_network

# As NVIDIA-Nemotron-Nano-9B-v2 is published.
NANO: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 131_072,
    "hidden_size": 4480,
    "intermediate_size": 15_680,
    "num_hidden_layers": 56,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5,
    "mlp_hidden_act": "relu2",
    "tie_word_embeddings": False,
}
# As NVIDIA-Nemotron-3-Nano-30B-A3B is published.
WITH_EXPERTS = NANO | {
    "hidden_size": 2688,
    "intermediate_size": 1856,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "routed_scaling_factor": 2.5,
}


def test_blocks_of_a_published_model_as_layers() -> None:
    network = read_network(NANO, 8192)
    spec, recurrent = network.spec, network.spec.recurrent
    assert recurrent is not None and len(recurrent.layers) == 27 and len(spec.attention_layers) == 4
    assert spec.layers == 31 and [network.has_feed_forward(layer) for layer in range(5)] == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert network.details.blocks[:5] == ((0, 1), (2, 3), (4, 5), (6, -1), (7, 8))
    assert all(spec.rope_of(layer) is None for layer in spec.attention_layers)
    assert spec.parameters == pytest.approx(8.89e9, rel=0.01)


def test_experts_of_a_published_model() -> None:
    network = read_network(WITH_EXPERTS, 8192)
    assert len(network.expert_layers) == 23 and network.spec.layers == 29
    assert network.spec.parameters == pytest.approx(31.6e9, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_override_pattern": None}, "layers_block_type must name the type of each layer"),
        ({"hybrid_override_pattern": "M-*X"}, "layer type 'X' is not supported"),
        ({"hybrid_override_pattern": "-M*"}, "layer 0 is of type 'mlp' and follows neither Mamba2 nor attention"),
        ({"hybrid_override_pattern": "M*--"}, "layer 3 is of type 'mlp' and follows neither"),
        ({"hybrid_override_pattern": "M-M"}, "no layer has attention"),
        ({"hybrid_override_pattern": "*-"}, "no layer has Mamba2"),
        ({"mlp_hidden_act": "silu"}, r"activation 'silu' is not supported \(supported: relu2\)"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act 'gelu' is not supported"),
        ({"use_bias": True}, "use_bias is not supported for nemotron_h"),
        ({"n_groups": 5}, "128 value heads are no multiple of 5 key heads"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        read_network(NANO | changes)


def test_experts_over_latents_are_refused() -> None:
    with pytest.raises(CompileError, match="moe_latent_size is not supported"):
        read_network(WITH_EXPERTS | {"moe_latent_size": 1024})
