"""Latent attention: geometry of a published model, what is refused by name, and answers as served."""

from pathlib import Path
from typing import Any

import pytest

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.plan import check_layers
from engine.errors import CompileError, UnsupportedModel
from engine.models.family import read_network

LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 102_400,
    "hidden_size": 2048,
    "intermediate_size": 10_944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "norm_topk_prob": False,
    "max_position_embeddings": 163_840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
}


def test_geometry_of_deepseek_v2_lite() -> None:
    network = read_network(LITE, 4096)
    assert network.spec.parameters == 15_706_484_224
    assert (network.spec.head_dim, network.spec.kv_heads, network.attended_width(0)) == (192, 16, 2048)
    assert network.qkv_outputs(0) == (3072, 512, 64)
    assert network.attention_scale == pytest.approx(192**-0.5 * 1.2608**2, rel=1e-4)


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"topk_method": "noaux_tc"}, "topk_method"),
        ({"norm_topk_prob": True}, "norm_topk_prob"),
        ({"v_head_dim": 256}, "v_head_dim"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        read_network(LITE | changes)


def test_an_npu_is_refused_by_name(tmp_path: Path) -> None:
    options = CompileArguments(tmp_path, tmp_path / "out", quant=Quant.W4, target="sc8380xp", rows=(1,), context=(512,))
    with pytest.raises(CompileError, match="made of latents"):
        check_layers(options, read_network(LITE, 4096))
