"""The real geometry of Qwen3.5-0.8B, its memory by hand, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import CompileError, UnsupportedModel
from engine.models.family import read_network

SMALLEST: dict[str, Any] = {  # text_config of Qwen3.5-0.8B
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248_320,
    "max_position_embeddings": 262_144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "text_config": SMALLEST,
    "vision_config": {"depth": 12},
}
TEXT_ONLY = SMALLEST | {"architectures": ["Qwen3_5ForCausalLM"], "tie_word_embeddings": True}


@pytest.mark.parametrize("config", [CONFIG, TEXT_ONLY], ids=["nested", "text"])
def test_geometry_and_memory_of_the_smallest_model(config: dict[str, Any]) -> None:
    network = read_network(config)
    spec, recurrent = network.spec, network.spec.recurrent
    assert (spec.layers, spec.hidden, spec.ffn, spec.vocab, spec.tied_head) == (24, 1024, 3584, 248_320, True)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.has_output_gate) == (8, 2, 256, True)
    assert (spec.rope.rotary_dim, spec.rope.theta, network.compiled_context) == (64, 1e7, 262_144)
    assert spec.attention_layers == (3, 7, 11, 15, 19, 23)
    assert recurrent is not None and len(recurrent.layers) == 18
    assert (recurrent.channels, recurrent.memory_shape, recurrent.tail_shape) == (6144, (16, 128, 128), (6144, 3))
    # A matrix of 128 x 128 float32 for each of 16 heads is 1 MiB a layer; the convolution keeps 3 inputs of 6,144.
    assert recurrent.memory_bytes == 18 * 1024**2
    assert recurrent.tail_bytes == 18 * 3 * 6144 * 4 == 1_327_104
    assert recurrent.state_bytes == 20_201_472


def test_parameters_by_hand() -> None:
    recurrent = 1024 * (6144 + 2048 + 16 + 16) + 6144 * 4 + 16 + 16 + 128 + 2048 * 1024
    attention = 1024 * (2 * 2048 + 2 * 512) + 2048 * 1024 + 2 * 256
    every = 3 * 1024 * 3584 + 2 * 1024
    whole = 18 * recurrent + 6 * attention + 24 * every + 248_320 * 1024 + 1024
    assert read_network(CONFIG).spec.parameters == whole == 752_393_024


def test_names_of_a_nested_model() -> None:
    details = read_network(CONFIG).details
    assert details.recurrent_names.a_log == "model.language_model.layers.{layer}.linear_attn.A_log"
    assert details.names.qkv[0] == "model.language_model.layers.{layer}.self_attn.q_proj"
    assert (details.names.head, details.names.embedding) == ("lm_head", "model.language_model.embed_tokens")
    assert read_network(TEXT_ONLY).details.names.embedding == "model.embed_tokens"


def test_a_quarter_of_a_head_turns_unless_the_config_says_otherwise() -> None:
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    assert read_network(TEXT_ONLY | {"rope_parameters": rope}).spec.rope.rotary_dim == 64
    assert (
        read_network(TEXT_ONLY | {"rope_parameters": rope | {"partial_rotary_factor": 1.0}}).spec.rope.rotary_dim == 256
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"full_attention_interval": 1}, "no layer is of type 'linear_attention'"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types must name 24 layers"),
        ({"layer_types": ["mamba"] * 24}, "layer type 'mamba' is not supported"),
        ({"linear_num_value_heads": 24}, "24 value heads are no multiple of 16 key heads"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim must be an integer from 2"),
        ({"linear_num_value_heads": 1024, "linear_key_head_dim": 1024, "linear_value_head_dim": 1024}, "is the most"),
        ({"hidden_act": "gelu"}, "'gelu'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    for config in (TEXT_ONLY | changes, CONFIG | {"text_config": SMALLEST | changes}):
        with pytest.raises((CompileError, UnsupportedModel), match=message):
            read_network(config)
