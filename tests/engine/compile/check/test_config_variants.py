"""Config.json as older and newer versions of transformers write it, and rarer values of it: transformers' logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.compile.check.parity import bundle_logits
from engine.errors import UnsupportedModel
from engine.models.family import read_network
from tests.engine.compile.check import test_families as families

MakeOracle, Build = Callable[..., tuple[Any, Path]], Callable[..., tuple[Path, Manifest]]
Config = dict[str, Any]
Edit = Callable[[Config], Config]
LOCAL_BASE = "rope_local_base_freq"


def older(config: Config) -> Config:
    """Rotations as transformers 4 has them: the base, the turned part and that of layers with a window apart."""
    told = config.pop("rope_parameters")
    if "full_attention" in told:
        config[LOCAL_BASE] = told["sliding_attention"]["rope_theta"]
        told = told["full_attention"]
    apart = {name: told.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in told}
    kind = told.pop("rope_type")
    name = "rope_type" if LOCAL_BASE in config else "type"
    return config | apart | {"rope_scaling": None if kind == "default" else {name: kind, **told}}


def without(*keys: str, **others: object) -> Edit:
    """others: what stands there instead."""
    return lambda config: {name: value for name, value in config.items() if name not in keys} | others


def same(config: Config) -> Config:
    return config


F = families
UNTIED, TIED, BIASED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}, {"attention_bias": True}
PADDED = {"pad_token_id": 0}
GEMMA2 = F.GEMMA | PADDED
GEMMA3 = GEMMA2 | {"num_hidden_layers": 7}
GEMMA4_BASES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 90_000.0},
}
GLM_FLASH = F.LATENT | {"q_lora_rank": 24}
HUGE_BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e11}}
MSCALES = {"rope_parameters": F.YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}
FALCON_PLAIN = {key: value for key, value in F.FALCON_H1.items() if "multiplier" not in key}
LFM2_FIRST = without(
    *("layer_types", "intermediate_size", "tie_word_embeddings"),
    full_attn_idxs=[0, 2],
    block_ff_dim=112,
    tie_embedding=False,
)
OLMO3_PUBLISHED = F.OLMO3 | F.unlike(F.YARN | {"rope_theta": 500_000.0}, 500_000.0)
PHI4 = {"partial_rotary_factor": 0.75, "rope_parameters": F.LONGROPE}
SMOLLM3 = PADDED | {"num_hidden_layers": 4}
SMOLLM3_NOPE = SMOLLM3 | {"no_rope_layers": [1, 0, 1, 0]} | UNTIED
NO_CAPS = without(attn_logit_softcapping=None, final_logit_softcapping=None)
HEADS = {"head_dim": 16, "pad_token_id": 0}

CASES: dict[str, tuple[str, Config, Edit]] = {
    "gemma2-without-caps": ("Gemma2", GEMMA2, NO_CAPS),
    "gemma2-biased-without-types": ("Gemma2", GEMMA2 | BIASED, without("layer_types")),
    "gemma3-older": ("Gemma3", GEMMA3 | F.GEMMA3_LINEAR, older),
    "gemma3-pattern": ("Gemma3", GEMMA3 | UNTIED, without("layer_types", sliding_window_pattern=6)),
    "gemma3-capped": ("Gemma3", GEMMA3 | {"final_logit_softcapping": 9.0}, same),
    "gemma3n-older": ("Gemma3n", F.GEMMA3N, older),
    "gemma3n-untied": ("Gemma3n", F.GEMMA3N | UNTIED, same),
    "gemma3n-biased-without-types": ("Gemma3n", F.GEMMA3N | BIASED, without("layer_types")),
    "gemma4-untied": ("Gemma4", F.GEMMA4_SMALL | UNTIED, same),
    "gemma4-biased": ("Gemma4", F.GEMMA4_LARGE | BIASED, same),
    "gemma4-without-types": ("Gemma4", F.GEMMA4 | {"hidden_size_per_layer_input": 0}, without("layer_types")),
    "gemma4-own-bases": ("Gemma4", F.GEMMA4_SMALL | {"rope_parameters": GEMMA4_BASES}, same),
    "gemma4-experts-with-values": ("Gemma4", F.GEMMA4_EXPERTS | {"attention_k_eq_v": False}, same),
    "falcon-tied-older": ("FalconH1", F.FALCON_H1 | TIED | HUGE_BASE, older),
    "falcon-yarn": ("FalconH1", F.FALCON_H1 | {"rope_parameters": F.YARN}, older),
    "falcon-without-inner-size": ("FalconH1", F.FALCON_H1 | {"mamba_d_ssm": None, "mamba_d_head": "auto"}, same),
    "falcon-without-multipliers": ("FalconH1", FALCON_PLAIN | {"mamba_d_conv": 3}, same),
    "falcon-without-key-heads": (
        "FalconH1",
        F.FALCON_H1 | {"num_key_value_heads": 4, "head_dim": 32},
        without(num_key_value_heads=None),
    ),
    "glm-flash-older": ("Glm4MoeLite", GLM_FLASH | BIASED, older),
    "glm-flash-halves-turn": ("Glm4MoeLite", GLM_FLASH | {"rope_interleave": False}, same),
    "glm-flash-tied-not-normed": ("Glm4MoeLite", GLM_FLASH | TIED | {"norm_topk_prob": False}, same),
    "glm-flash-groups": ("Glm4MoeLite", GLM_FLASH | {"n_group": 4, "topk_group": 2}, same),
    "glm-flash-dense-first": ("Glm4MoeLite", GLM_FLASH, without("mlp_layer_types", first_k_dense_replace=1)),
    "deepseek-older": ("DeepseekV2", F.DEEPSEEK, older),
    "deepseek-tied-biased": ("DeepseekV2", F.DEEPSEEK | TIED | BIASED | {"q_lora_rank": 24}, same),
    "deepseek-unlike-scales": ("DeepseekV2", F.LATENT | MSCALES, same),
    "deepseek-without-groups": ("DeepseekV2", F.DEEPSEEK | {"n_group": None, "topk_group": None}, same),
    "deepseek-llama3": ("DeepseekV2", F.LATENT | {"rope_parameters": F.LLAMA3}, same),
    "lfm2-first-published": ("Lfm2", F.LFM2 | UNTIED | {"intermediate_size": 112}, LFM2_FIRST),
    "lfm2-older": ("Lfm2", F.LFM2 | {"conv_L_cache": 4, "block_auto_adjust_ff_dim": False}, older),
    "lfm2-yarn": ("Lfm2", F.LFM2 | {"rope_parameters": F.YARN}, same),
    "lfm2-moe": ("Lfm2Moe", F.LFM2_MOE | {"use_expert_bias": False, "num_dense_layers": 0}, older),
    "mistral-without-window": ("Mistral", F.WINDOW | {"sliding_window": None}, without(head_dim=None)),
    "mixtral-without-window": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}, older),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": F.YARN, "sliding_window": 16}, older),
    "qwen3-moe-biased": ("Qwen3Moe", F.MOE | BIASED | {"decoder_sparse_step": 2}, older),
    "gpt-oss-older": ("GptOss", F.GPT_OSS | {"rope_parameters": F.YARN | {"truncate": False}}, older),
    "gpt-oss-plain": ("GptOss", F.GPT_OSS | TIED | {"attention_bias": False}, without("layer_types")),
    "olmo3-older": ("Olmo3", OLMO3_PUBLISHED, lambda config: without(LOCAL_BASE)(older(config))),
    "olmo3-biased": ("Olmo3", F.OLMO3 | BIASED, without("layer_types")),
    "exaone4-tied": ("Exaone4", F.EXAONE4 | TIED, without("layer_types")),
    "smollm3-listed": ("SmolLM3", SMOLLM3_NOPE | BIASED, older),
    "smollm3-not-listed": ("SmolLM3", SMOLLM3, without("no_rope_layers", "layer_types")),
    "phi4-mini-older": ("Phi3", PADDED | PHI4 | TIED, older),
    "glm-older": ("Glm", HEADS | {"attention_bias": False}, older),
    "glm4-biased": ("Glm4", HEADS | BIASED, older),
    "ernie-biased": ("Ernie4_5", HEADS | UNTIED | {"use_bias": True}, older),
    "hunyuan-older": ("HunYuanDenseV1", F.HUNYUAN_ALPHA | BIASED, older),
    "granite-biased": ("Granite", F.GRANITE | BIASED | TIED | {"mlp_bias": True}, older),
    "llama-biased": ("Llama", BIASED | {"mlp_bias": True, "rope_parameters": F.LLAMA3}, older),
}


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str, make_oracle: MakeOracle, build: Build, prompt: list[int]) -> None:
    """Of what transformers reads of the same file."""
    family, changes, edit = CASES[case]
    model, source = make_oracle(family, **changes)
    path = source / "config.json"
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    model = type(model).from_pretrained(source, dtype=torch.float32).eval()
    folder, manifest = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS, parity_tokens=24)
    text = (prompt * 3)[:100]
    with torch.no_grad():
        expected = model(torch.tensor([text]), use_cache=False).logits[0].numpy()
    measured = bundle_logits(folder, manifest, [text], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


def test_a_cap_of_gemma_3s_scores_is_refused(make_oracle: MakeOracle) -> None:
    """Transformers and llama.cpp pass over it."""
    _, source = make_oracle("Gemma3", **GEMMA3, attn_logit_softcapping=5.0)
    with pytest.raises(UnsupportedModel, match="attn_logit_softcapping is not supported for gemma3"):
        read_network(json.loads((source / "config.json").read_text()))
