"""Every family against transformers, as segments: greedy tokens and logits, past windows and the original context."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bundle.manifest import Manifest
from tests.engine.compile.conftest import check_greedy_text

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10_000.0,
}
WINDOW = {"sliding_window": 16, "num_hidden_layers": 4, "head_dim": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10_000.0,
}
ALPHA = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10_000.0}
HUNYUAN_ALPHA = {"head_dim": 16, "pad_token_id": 0, "rope_parameters": ALPHA}


def unlike(full: dict[str, Any], theta: float) -> dict[str, Any]:
    """Layers with a window turn without the scaling."""
    windows = {"rope_type": "default", "rope_theta": theta}
    return {"rope_parameters": {"full_attention": full, "sliding_attention": windows}}


OLMO3 = {"num_hidden_layers": 4, "sliding_window": 16, "pad_token_id": 0}
OLMO3_YARN = OLMO3 | unlike(YARN, 10_000.0)
OLMO3_OWN_BASE = OLMO3 | unlike({"rope_type": "default", "rope_theta": 90_000.0}, 20_000.0)
EXAONE4 = {"num_hidden_layers": 4, "sliding_window": 16, "sliding_window_pattern": 4}
EXAONE4_LLAMA3 = EXAONE4 | {"rope_parameters": LLAMA3}
GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.1,
    "logits_scaling": 8.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 6,
    "long_factor": [1.0, 1.1, 1.5, 2.0, 3.0, 4.0],
}
GRANITE4 = GRANITE | {
    "num_local_experts": 0,
    "shared_intermediate_size": 112,
    "layer_types": ["full_attention"] * 3,
    "position_embedding_type": "rope",
}
GRANITE_HYBRID = GRANITE4 | {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "position_embedding_type": None,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
}
GRANITE_HYBRID_MOE = GRANITE_HYBRID | {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 32,
    "mamba_n_groups": 1,
    "mamba_conv_bias": False,
    "layer_types": ["full_attention", "linear_attention"] * 2,
}
FALCON_H1 = {
    "mamba_d_ssm": 96,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
    "mlp_multipliers": [0.7, 1.4],
    "key_multiplier": 0.6,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.8,
    "ssm_multipliers": [0.9, 0.8, 1.2, 0.7, 1.3],
}
NEMOTRON_H = {
    "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp", "linear_attention"],
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 24,
    "chunk_size": 16,
}
NEMOTRON_H_MOE = NEMOTRON_H | {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention", "mlp"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 96,
    "routed_scaling_factor": 1.8,
}
LFM2 = {
    "num_hidden_layers": 4,
    "layer_types": ["full_attention", "conv", "full_attention", "conv"],
    "block_multiple_of": 16,
    "hidden_size": 128,
    "head_dim": 32,
    "pad_token_id": 0,
}
LFM2_MOE = LFM2 | {"num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 16}
GEMMA3_LINEAR = unlike({"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, 10_000.0) | {"num_hidden_layers": 7}

GEMMA4 = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 16, "num_hidden_layers": 8, "pad_token_id": 0}
GEMMA4_SMALL = GEMMA4 | {
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 4,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 384,
    "final_logit_softcapping": 30.0,
}
GEMMA4_LARGE = GEMMA4 | {
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 0,
    "use_bidirectional_attention": "vision",
}
GEMMA4_EXPERTS = GEMMA4_LARGE | {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
GEMMA3N = {
    "head_dim": 16,
    "sliding_window": 16,
    "num_hidden_layers": 10,
    "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
    "num_kv_shared_layers": 5,
    "activation_sparsity_pattern": [0.9] * 4 + [0.0] * 6,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 192,
    "laurel_rank": 8,
    "pad_token_id": 0,
}
GEMMA3N_ALONE = GEMMA3N | {
    "num_hidden_layers": 11,
    "layer_types": None,
    "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": None,
    "altup_num_inputs": 3,
    "intermediate_size": [96, 112] * 5 + [96],
}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32, "pad_token_id": 0}
GLM = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
    "routed_scaling_factor": 1.8,
    "pad_token_id": 0,
}
GPT_OSS = WINDOW | {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 96, "pad_token_id": 0}
GPT_OSS_YARN = GPT_OSS | {"rope_parameters": YARN | {"truncate": False}}
MOE = {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}

LATENT = {
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "pad_token_id": 0,
}
DEEPSEEK = LATENT | {
    "first_k_dense_replace": 1,
    "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "q_lora_rank": 24}

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mistral-window": ("Mistral", "mistral", WINDOW),
    "ministral": ("Ministral", "ministral", WINDOW | {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    "phi3-window": ("Phi3", "phi3", {"sliding_window": 16, "pad_token_id": 0}),
    "phi4-mini": ("Phi3", "phi3", {"partial_rotary_factor": 0.75, "rope_parameters": LONGROPE, "pad_token_id": 0}),
    "ministral3": (
        "Ministral3",
        "ministral3",
        {"head_dim": 16, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.5}},
    ),
    "qwen2-window": ("Qwen2", "qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3-yarn": ("Qwen3", "qwen3", {"head_dim": 32, "rope_parameters": YARN}),
    "smollm3": ("SmolLM3", "smollm3", {"num_hidden_layers": 4, "pad_token_id": 0}),
    "smollm3-yarn": ("SmolLM3", "smollm3", {"num_hidden_layers": 4, "pad_token_id": 0, "rope_parameters": YARN}),
    "granite": ("Granite", "granite", GRANITE),
    "granite4": ("GraniteMoeHybrid", "granitemoehybrid", GRANITE4),
    "granite4-nope": ("GraniteMoeHybrid", "granitemoehybrid", GRANITE4 | {"position_embedding_type": "nope"}),
    "granite4-hybrid": ("GraniteMoeHybrid", "granitemoehybrid", GRANITE_HYBRID),
    "granite4-hybrid-moe": ("GraniteMoeHybrid", "granitemoehybrid", GRANITE_HYBRID_MOE),
    "falcon-h1": ("FalconH1", "falcon_h1", FALCON_H1),
    "falcon-h1-normed": (
        "FalconH1",
        "falcon_h1",
        FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_conv_bias": False},
    ),
    "nemotron-h": ("NemotronH", "nemotron_h", NEMOTRON_H),
    "nemotron-h-moe": ("NemotronH", "nemotron_h", NEMOTRON_H_MOE),
    "nemotron-h-moe-groups": ("NemotronH", "nemotron_h", NEMOTRON_H_MOE | {"n_group": 4, "topk_group": 2}),
    "lfm2": ("Lfm2", "lfm2", LFM2),
    "lfm2-ends-with-attention": ("Lfm2", "lfm2", LFM2 | {"layer_types": LFM2["layer_types"][::-1]}),
    "lfm2-moe": ("Lfm2Moe", "lfm2_moe", LFM2_MOE),
    "hunyuan": ("HunYuanDenseV1", "hunyuan_v1_dense", {"head_dim": 16, "pad_token_id": 0}),
    "hunyuan-alpha": ("HunYuanDenseV1", "hunyuan_v1_dense", HUNYUAN_ALPHA),
    "ernie": ("Ernie4_5", "ernie4_5", {"head_dim": 16, "pad_token_id": 0}),
    "olmo2": ("Olmo2", "olmo2", {"pad_token_id": 0}),
    "olmo3": ("Olmo3", "olmo3", OLMO3),
    "olmo3-yarn": ("Olmo3", "olmo3", OLMO3_YARN),
    "olmo3-own-base": ("Olmo3", "olmo3", OLMO3_OWN_BASE),
    "exaone4": ("Exaone4", "exaone4", EXAONE4),
    "exaone4-llama3": ("Exaone4", "exaone4", EXAONE4_LLAMA3),
    "exaone4-full": ("Exaone4", "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "glm": ("Glm", "glm", {"head_dim": 16, "pad_token_id": 0}),
    "glm4": ("Glm4", "glm4", {"head_dim": 16, "pad_token_id": 0}),
    "gemma": ("Gemma", "gemma", {"head_dim": 16, "pad_token_id": 0}),
    "gemma2": ("Gemma2", "gemma2", GEMMA | {"pad_token_id": 0, "attn_logit_softcapping": 5.0}),
    "qwen3-moe": ("Qwen3Moe", "qwen3_moe", MOE | {"norm_topk_prob": True}),
    "qwen3-moe-yarn": ("Qwen3Moe", "qwen3_moe", MOE | {"norm_topk_prob": True, "rope_parameters": YARN}),
    "qwen3-moe-mixed": ("Qwen3Moe", "qwen3_moe", MOE | {"mlp_only_layers": [1]}),
    "qwen2-moe": ("Qwen2Moe", "qwen2_moe", MOE | {"shared_expert_intermediate_size": 96}),
    "mixtral": ("Mixtral", "mixtral", {"num_local_experts": 4, "sliding_window": 16}),
    "olmoe": ("Olmoe", "olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}),
    "granite-moe": ("GraniteMoe", "granitemoe", GRANITE | LOCAL),
    "granite-moe-shared": ("GraniteMoeShared", "granitemoeshared", GRANITE | LOCAL | {"shared_intermediate_size": 96}),
    "glm4-moe": ("Glm4Moe", "glm4_moe", GLM | {"use_qk_norm": True}),
    "glm4-moe-groups": ("Glm4Moe", "glm4_moe", GLM | {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 0}),
    "ernie-moe": ("Ernie4_5_Moe", "ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32}),
    "gpt-oss": ("GptOss", "gpt_oss", GPT_OSS_YARN),
    "gemma3n": ("Gemma3n", "gemma3n", GEMMA3N),
    "gemma3n-caches-alone": ("Gemma3n", "gemma3n", GEMMA3N_ALONE),
    "gemma4-small": ("Gemma4", "gemma4", GEMMA4_SMALL),
    "gemma4-large": ("Gemma4", "gemma4", GEMMA4_LARGE),
    "gemma4-experts": ("Gemma4", "gemma4", GEMMA4_EXPERTS),
    "gemma4-heads-alike": ("Gemma4", "gemma4", GEMMA4_SMALL | {"global_head_dim": 16, "max_position_embeddings": 128}),
    "deepseek-v2": ("DeepseekV2", "deepseek_v2", DEEPSEEK),
    "deepseek-v2-groups": ("DeepseekV2", "deepseek_v2", LATENT | GROUPS | {"routed_scaling_factor": 2.5}),
    "glm4-flash": ("Glm4MoeLite", "glm4_moe_lite", LATENT | {"q_lora_rank": 24, "v_head_dim": 24}),
    "gemma3": ("Gemma3", "gemma3", GEMMA | {"num_hidden_layers": 7, "pad_token_id": 0}),
    "gemma3-linear": ("Gemma3", "gemma3", GEMMA | GEMMA3_LINEAR | {"pad_token_id": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_and_logits(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    family, name, changes = CASES[case]
    model, source = make_oracle(family, **changes)
    assert check_greedy_text(model, source, build, prompt, count=64).model.family == name
