"""Configs of encoders as networks."""

from typing import Any

import pytest

from engine.errors import UnsupportedModel
from engine.models.encoders import architecture_of, read_encoder
from engine.models.network import Activation, Network

# As nomic-embed-text-v1.5 is published.
FIRST_RELEASE: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 30528,
}
OWN: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "vocab_size": 30528,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}


def read(values: dict[str, Any], longest: int = 0) -> Network:
    return read_encoder(values, lambda name: False, longest)


def test_both_spellings_of_nomic_are_one_network() -> None:
    """Texts end where the frequencies were trained for, not at n_positions."""
    network = read(FIRST_RELEASE)
    assert network == read(OWN)
    assert (network.compiled_context, network.spec.rope.theta, network.spec.rope.rotary_dim) == (2048, 1000.0, 64)
    assert network.encoder is not None
    assert network.encoder.activation is Activation.GATED_SILU
    assert dict(network.encoder.prompts)["query"] == "search_query: "
    assert round(network.spec.parameters / 1e6) == 137


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prenorm": True}, "prenorm True is not supported"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias True"),
        ({"activation_function": "gelu"}, "activation 'gelu' is not supported"),
        ({"rotary_emb_fraction": 0.5}, "whole heads turn"),
        ({"rotary_emb_fraction": 0.0}, "whole heads turn"),
        ({"use_rms_norm": True}, "use_rms_norm True"),
    ],
)
def test_what_nomic_may_say_and_is_not_implemented(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(FIRST_RELEASE | values)


def test_minilm() -> None:
    """As all-MiniLM-L6-v2 is published: 22.7 million parameters, of which the pooler's 0.15 are not used."""
    network = read(
        {
            "architectures": ["BertModel"],
            "hidden_act": "gelu",
            "hidden_size": 384,
            "intermediate_size": 1536,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "num_attention_heads": 12,
            "num_hidden_layers": 6,
            "type_vocab_size": 2,
            "vocab_size": 30522,
        },
        256,
    )
    assert (network.spec.head_dim, network.max_position, network.compiled_context) == (32, 512, 256)
    assert network.spec.parameters == 22_713_216 - 384 * 385
    assert network.spec.rope.kind == "none"


def test_xlm_roberta_counts_from_behind_the_padding() -> None:
    """As bge-m3 is published: 8,194 rows in the table for texts of 8,192 tokens."""
    values = {"architectures": ["XLMRobertaModel"], "max_position_embeddings": 8194, "pad_token_id": 1}
    sizes = {"vocab_size": 250002, "type_vocab_size": 1, "hidden_size": 1024, "num_attention_heads": 16}
    network = read(values | sizes)
    assert network.encoder is not None
    assert (network.encoder.spec.position_offset, network.encoder.table_rows) == (2, 8194)
    assert network.compiled_context == 8192


def test_modernbert_as_first_published() -> None:
    """Both bases under keys of their own; a window of 128 reaches 64 rows to either side."""
    bases = {"global_rope_theta": 160001.0, "local_rope_theta": 10001.0, "global_attn_every_n_layers": 3}
    sizes = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 22, "intermediate_size": 1152}
    values = {"architectures": ["ModernBertModel"], "vocab_size": 50368, "max_position_embeddings": 8192}
    network = read(values | bases | sizes | {"local_attention": 128, "hidden_activation": "gelu"})
    assert network.spec.local_rope is not None
    assert (network.spec.rope.theta, network.spec.local_rope.theta) == (160001.0, 10001.0)
    assert [each.window for each in network.spec.attention[:4]] == [0, 129, 129, 0]


def test_recognition_knows_encoders_alone() -> None:
    assert architecture_of({"architectures": ["Qwen3ForCausalLM"]}) is None
    assert architecture_of({"architectures": "BertModel"}) is None
    assert architecture_of({"architectures": [3, "BertModel"]}) == "BertModel"
