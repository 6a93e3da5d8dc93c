"""Gemma 4: what its config says of layers, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest

from engine.compile.arguments import CompileArguments, KvType, Layout, Quant
from engine.compile.plan import check_layers, resolve_caches
from engine.errors import CompileError, UnsupportedModel
from engine.models.family import read_network

E2B: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "text_config": {
        "vocab_size": 262_144,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "final_logit_softcapping": 30.0,
    },
}


def test_the_last_layers_read_what_the_last_of_their_kind_has() -> None:
    network = read_network(E2B, 8192)
    spec = network.spec
    assert [spec.owner_of(layer) for layer in (12, 13, 14, 15, 18, 19, 34)] == [12, 13, 14, 13, 13, 14, 14]
    assert spec.shared_layers == {13, 14}
    assert {(group.window, group.head_dim): len(group.layers) for group in spec.cache_groups} == {
        (0, 512): 3,
        (512, 256): 12,
    }
    assert spec.cache_numbers == 2 * (3 * 512 + 12 * 256)
    assert network.ffn_of(14) == 6144 and network.ffn_of(15) == 12_288
    assert network.qkv_outputs(14) == (4096, 512, 512) and network.qkv_outputs(15) == (2048,)
    assert network.details.layer_inputs is not None
    assert network.details.layer_inputs.gate == "model.language_model.layers.{layer}.per_layer_input_gate"


def test_frequencies_of_heads_that_turn_in_part() -> None:
    rope = read_network(E2B | {"text_config": E2B["text_config"] | {"rope_parameters": ROPE}}, 8192).spec.rope
    assert rope.rotary_dim == 512 and rope.inverse_frequencies[64:] == (0.0,) * 192
    assert rope.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 512))


ROPE = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"enable_moe_block": True, "num_experts": 8}, "use_double_wide_mlp is not supported beside experts"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"num_kv_shared_layers": 34}, "num_kv_shared_layers"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_network(E2B | {"text_config": E2B["text_config"] | changes})


def test_an_npu_and_int8_caches_are_refused_by_name(tmp_path: Path) -> None:
    network = read_network(E2B, 8192)
    options = CompileArguments(tmp_path, tmp_path / "out", quant=Quant.W4, target="sc8380xp", rows=(1,), context=(512,))
    with pytest.raises(CompileError, match="keys and values of others"):
        check_layers(options, network)
    options = CompileArguments(tmp_path, tmp_path / "out", layout=Layout.SEGMENTS, quant=Quant.INT8, kv=KvType.INT8)
    with pytest.raises(CompileError, match="--kv int8 is refused"):
        resolve_caches(options, network)
