"""The table of GGUF architectures, their metadata with every value checked, and the sizes that tensors follow from.

Names are those of checkpoints, which the rest of the compiler speaks. Where files have their tensors the `gguf`
package's table says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import UnsupportedModel
from engine.files import brief
from engine.models.mamba2 import SPLIT_MLP

ARCHITECTURE = "general.architecture"
# Facts of the network that are stored as tensors.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}


class Gating(IntEnum):
    """What becomes of the router's outputs, by the number that files give it; 0 is the usual one."""

    UNTOLD = 0
    SOFTMAX = 1
    SIGMOID = 2


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """One value of `general.architecture`.

    family: the name transformers gives its class. is_interleaved: the converter re-orders queries and keys, as its
    rotation turns neighbours. is_hybrid: layers are recurrent, or have attention. has_more_norms: the converter adds 1
    to the weights of norms. keys: what changes the arithmetic and is read for this architecture, by its name in
    config.json. facts: what files do not say, as config.json would. has_blocks: a layer is attention, Mamba2 or a
    feed-forward alone. has_latents: keys and values are made of latents. is_encoder: rows see both ways, and vectors
    are what it is for. gating: of experts."""

    name: str
    family: str
    is_interleaved: bool = False
    is_hybrid: bool = False
    has_more_norms: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    has_blocks: bool = False
    has_latents: bool = False
    is_encoder: bool = False
    gating: Gating = Gating.SOFTMAX


CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
MULTIPLIERS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
EXPERT_COUNT = "expert_count"
COUNTS = {"num_experts": EXPERT_COUNT, "num_experts_per_tok": "expert_used_count"}
SIZES = COUNTS | {"moe_intermediate_size": "expert_feed_forward_length"}
GEMMA4_SIZES = {
    "num_experts": EXPERT_COUNT,
    "top_k_experts": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
LOCAL_COUNTS = {"num_local_experts": EXPERT_COUNT, "num_experts_per_tok": "expert_used_count"}
LOCAL_SIZES = LOCAL_COUNTS | {"intermediate_size": "expert_feed_forward_length"}
GRANITE_SIZES = LOCAL_COUNTS | {"shared_intermediate_size": "expert_shared_feed_forward_length"}
MAMBA2_SIZES = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_d_ssm": "ssm.inner_size",
}
NEMOTRON_SIZES = {
    "mamba_num_heads": "ssm.time_step_rank",
    "n_groups": "ssm.group_count",
    "ssm_state_size": "ssm.state_size",
    "conv_kernel": "ssm.conv_kernel",
}
LATENT_SIZES = SIZES | {
    "n_routed_experts": EXPERT_COUNT,
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
NEMOTRON_MOE_SIZES = SIZES | {
    "n_routed_experts": EXPERT_COUNT,
    "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "moe_latent_size": "moe_latent_size",
}
ERNIE_SIZES = {
    "moe_num_experts": EXPERT_COUNT,
    "moe_k": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
}
SHARED_SIZES = SIZES | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"}
SIZE_AS_TOLD = {"block_auto_adjust_ff_dim": False}
BOTH_WAYS = {"use_bidirectional_attention": True}
ARCHITECTURES = {
    each.name: each
    for each in (
        GgufArchitecture("llama", "LlamaForCausalLM", is_interleaved=True, keys=COUNTS),
        GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
        GgufArchitecture("qwen3", "Qwen3ForCausalLM"),
        # The text models of Qwen2.5-VL and Qwen3-VL: of text all positions are alike.
        GgufArchitecture("qwen2vl", "Qwen2ForCausalLM"),
        GgufArchitecture("qwen3vl", "Qwen3ForCausalLM"),
        GgufArchitecture("qwen2moe", "Qwen2MoeForCausalLM", keys=SHARED_SIZES),
        GgufArchitecture("qwen3moe", "Qwen3MoeForCausalLM", keys=SIZES, facts={"norm_topk_prob": True}),
        GgufArchitecture("olmoe", "OlmoeForCausalLM", keys=COUNTS),
        GgufArchitecture("deepseek2", "DeepseekV2ForCausalLM", keys=LATENT_SIZES, has_latents=True),
        GgufArchitecture("glm4moe", "Glm4MoeForCausalLM", keys=LATENT_SIZES, gating=Gating.SIGMOID),
        GgufArchitecture("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", keys=ERNIE_SIZES),
        GgufArchitecture("qwen35", "Qwen3_5ForCausalLM", is_hybrid=True, has_more_norms=True),
        GgufArchitecture("gpt-oss", "GptOssForCausalLM", keys=LOCAL_SIZES),
        GgufArchitecture("qwen35moe", "Qwen3_5MoeForCausalLM", is_hybrid=True, has_more_norms=True, keys=SHARED_SIZES),
        GgufArchitecture(
            "mistral3",
            "Ministral3ForCausalLM",
            is_interleaved=True,
            keys={"llama_4_scaling_beta": "attention.temperature_scale"},
        ),
        GgufArchitecture("phi3", "Phi3ForCausalLM"),
        GgufArchitecture("smollm3", "SmolLM3ForCausalLM", is_interleaved=True),
        GgufArchitecture("granite", "GraniteForCausalLM", is_interleaved=True, keys=MULTIPLIERS),
        GgufArchitecture("granitemoe", "GraniteMoeForCausalLM", is_interleaved=True, keys=MULTIPLIERS | GRANITE_SIZES),
        GgufArchitecture(
            "granitehybrid",
            "GraniteMoeHybridForCausalLM",
            is_interleaved=True,
            keys=MULTIPLIERS | GRANITE_SIZES | MAMBA2_SIZES,
            facts={SPLIT_MLP: True},
        ),
        GgufArchitecture(
            "falcon-h1", "FalconH1ForCausalLM", keys=MAMBA2_SIZES, facts={"mamba_norm_before_gate": False}
        ),
        # Queries and keys are re-ordered alike, which without a rotation changes no score.
        GgufArchitecture("nemotron_h", "NemotronHForCausalLM", keys=NEMOTRON_SIZES, has_blocks=True),
        GgufArchitecture(
            "nemotron_h_moe",
            "NemotronHForCausalLM",
            keys=NEMOTRON_SIZES | NEMOTRON_MOE_SIZES,
            has_blocks=True,
            gating=Gating.SIGMOID,
        ),
        GgufArchitecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM"),
        GgufArchitecture("ernie4_5", "Ernie4_5ForCausalLM"),
        GgufArchitecture("olmo2", "Olmo2ForCausalLM"),
        GgufArchitecture("exaone4", "Exaone4ForCausalLM"),
        GgufArchitecture("glm4", "Glm4ForCausalLM"),
        GgufArchitecture("chatglm", "GlmForCausalLM"),
        GgufArchitecture("gemma", "GemmaForCausalLM", has_more_norms=True),
        GgufArchitecture("gemma2", "Gemma2ForCausalLM", has_more_norms=True, keys=CAPS),
        GgufArchitecture("gemma3", "Gemma3ForCausalLM", has_more_norms=True, keys=CAPS),
        GgufArchitecture("gemma3n", "Gemma3nForCausalLM", keys=CAPS),
        GgufArchitecture("gemma4", "Gemma4ForCausalLM", keys=CAPS | GEMMA4_SIZES),
        GgufArchitecture("gemma-embedding", "Gemma3TextModel", has_more_norms=True, facts=BOTH_WAYS, is_encoder=True),
        GgufArchitecture("lfm2", "Lfm2ForCausalLM", keys={"conv_L_cache": "shortconv.l_cache"}, facts=SIZE_AS_TOLD),
        GgufArchitecture(
            "lfm2moe",
            "Lfm2MoeForCausalLM",
            keys=SIZES | {"conv_L_cache": "shortconv.l_cache", "num_dense_layers": "leading_dense_block_count"},
            gating=Gating.SIGMOID,
        ),
        GgufArchitecture("modern-bert", "ModernBertModel", is_encoder=True),
        GgufArchitecture("bert", "BertModel", is_encoder=True),
    )
}


def architecture_of(header: GgufHeader) -> GgufArchitecture:
    """The architecture of a file. UnsupportedModel by its name when there is no such row."""
    name = header.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(f"{header.path.name}: architecture {brief(name)} is not supported (supported: {known})")
    return ARCHITECTURES[name]
