"""config.json as a Network: what is accepted, and what is refused by name."""

from typing import Any

import pytest

from engine.errors import CompileError, UnsupportedModel
from engine.models.family import FAMILIES, read_network

GOOD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


def test_geometry_and_parameters() -> None:
    """Sizes, defaults, and a parameter count by hand."""
    network = read_network(GOOD)
    spec = network.spec
    assert (spec.layers, spec.head_dim, spec.kv_heads, spec.tied_head) == (2, 16, 2, False)
    assert (network.query_width, network.key_width) == (64, 32)
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert spec.parameters == 2 * layer + 2 * 100 * 64 + 64
    assert network.max_position == network.compiled_context == 2048


@pytest.mark.parametrize(("asked", "given"), [(0, 2048), (100, 100), (5000, 2048)])
def test_context_is_bounded_by_the_checkpoint(asked: int, given: int) -> None:
    """0 means all of it; more than it was made for is not given."""
    assert read_network(GOOD, asked).compiled_context == given


LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
MORE: dict[str, dict[str, Any]] = {
    "Qwen3_5ForCausalLM": LAYERS,
    "Qwen3_5ForConditionalGeneration": {"text_config": GOOD | LAYERS},
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_reads_a_minimal_config(architecture: str) -> None:
    """The table is complete."""
    assert (
        read_network(GOOD | MORE.get(architecture, {}) | {"architectures": [architecture]}).spec.family
        == FAMILIES[architecture].name
    )


def test_family_differences() -> None:
    """Biases and head norms as the architectures define them."""
    qwen2 = read_network(GOOD | {"architectures": ["Qwen2ForCausalLM"]}).details
    qwen3 = read_network(GOOD | {"architectures": ["Qwen3ForCausalLM"]})
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.has_qk_norm) == (True, False, False)
    assert (qwen3.details.qkv_bias, qwen3.details.has_qk_norm, qwen3.spec.head_dim) == (False, True, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"),
        ({"architectures": None, "model_type": "rwkv"}, "rwkv"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised already"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 1024}, "sliding window of 1024"),
        ({"architectures": ["Phi3ForCausalLM"], "sliding_window": 2047}, "sliding window of 2047"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 512},
            "sliding window of 512",
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["sliding_attention"], "sliding_window": 512},
            "sliding window of 512",
        ),
        ({"layer_types": ["linear_attention"]}, "'linear_attention'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn'"),
    ],
)
def test_unsupported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """What is not implemented never compiles to something else."""
    with pytest.raises(UnsupportedModel, match=message):
        read_network(GOOD | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": 4096},
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 512},
    ],
)
def test_a_window_that_hides_nothing_is_accepted(changes: dict[str, Any]) -> None:
    """As wide as the context, absent, or switched off."""
    assert read_network(GOOD | changes).compiled_context == 2048


def test_a_narrow_context_makes_a_window_inactive() -> None:
    """A window of 1024 hides nothing in a context of 1024."""
    values = GOOD | {"architectures": ["MistralForCausalLM"], "sliding_window": 1024}
    assert read_network(values, 1024).compiled_context == 1024


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -64),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("hidden_size", 1 << 40),
        ("num_hidden_layers", 1.5),
        ("num_hidden_layers", 10**9),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 8),
        ("vocab_size", None),
        ("intermediate_size", float("inf")),
        ("max_position_embeddings", 0),
        ("head_dim", 7),
        ("rms_norm_eps", -1.0),
        ("tie_word_embeddings", 1),
        ("hidden_act", 3),
    ],
)
def test_damaged_values_name_their_key(key: str, value: object) -> None:
    """An untrusted file cannot size anything before it is checked."""
    with pytest.raises(CompileError, match=key if key != "head_dim" else "rotary part of a head"):
        read_network(GOOD | {key: value})
