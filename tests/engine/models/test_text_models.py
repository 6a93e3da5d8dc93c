"""Text models of checkpoints that also read images: sizes that published configs leave out, and names of tensors."""

from typing import Any

import pytest

from engine.errors import CompileError
from engine.models.family import read_network
from engine.models.vision import text_alone

# As google/gemma-3-4b-it has it.
GEMMA3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "image_token_index": 262_144,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model"},
}
MISTRAL3: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "text_config": {
        "model_type": "mistral",
        "hidden_size": 5120,
        "intermediate_size": 32_768,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131_072,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e9,
    },
    "vision_config": {"model_type": "pixtral"},
}


def test_a_config_that_leaves_out_what_its_class_says() -> None:
    network = read_network(GEMMA3_4B, 8192)
    spec = network.spec
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab) == (8, 4, 256, 262_208)
    assert spec.tied_head and network.images_both_ways
    assert spec.layer_windows[:6] == (1024,) * 5 + (0,)
    assert spec.local_rope is not None
    # Only layers that see everything are stretched.
    assert spec.rope.inverse_frequencies[0] == 1 / 8 and spec.local_rope.inverse_frequencies[0] == 1.0
    assert network.details.names.down == "language_model.model.layers.{layer}.mlp.down_proj"


def test_without_its_encoder_it_is_a_model_of_text() -> None:
    network = read_network(text_alone(GEMMA3_4B), 8192)
    assert not network.reads_images and not network.images_both_ways
    assert text_alone(MISTRAL3) == MISTRAL3


def test_the_text_model_is_told_by_its_type() -> None:
    network = read_network(MISTRAL3, 8192)
    assert (network.spec.family, network.spec.rope.theta, network.spec.tied_head) == ("mistral3", 1e9, False)
    assert network.details.names.head == "language_model.lm_head"
    with pytest.raises(CompileError, match="head_dim is missing"):
        read_network(MISTRAL3 | {"text_config": {**MISTRAL3["text_config"], "head_dim": None}})
