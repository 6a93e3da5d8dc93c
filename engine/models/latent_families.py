"""Families with latent attention and experts: DeepSeek-V2 and GLM-4.7-flash."""

import math
from dataclasses import replace

from engine.errors import UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.expert_families import read_glm_experts
from engine.models.experts import ExpertDetails, GroupScore, RouterScore
from engine.models.latent import LatentAttention, read_latent
from engine.models.layer_kinds import layer_count
from engine.models.network import Family, FamilyDetails, Multipliers, WeightNames

_QUERY_RANKS = {"deepseek_v2": 1536, "glm4_moe_lite": 768}  # where the config does not say
GREEDY, OF_GROUPS = "greedy", "group_limited_greedy"


def _with_latents(config: ConfigFields, experts: ExpertDetails, query_rank: int) -> FamilyDetails:
    latent, has_bias = read_latent(config, query_rank), config.flag("attention_bias", False)
    return FamilyDetails(
        qkv_bias=has_bias,
        output_bias=has_bias,
        multipliers=Multipliers(attention=_scale(config, latent)),
        names=WeightNames(qkv=latent.names),
        latent=latent,
        experts=experts,
        ignored=(f"model.layers.{layer_count(config)}.",),  # what drafts tokens
    )


def _scale(config: ConfigFields, latent: LatentAttention) -> float:
    """YaRN's factor of attention goes into the scores of whole heads (transformers `yarn_apply_mscale`)."""
    rope = config.group("rope_parameters") or config.group("rope_scaling") or ConfigFields({})
    factor, weight = rope.number("factor", 1e-3, 1e6, 1.0), rope.number("mscale_all_dim", 0.0, 1e3, 0.0)
    stretch = 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0
    return stretch * stretch / math.sqrt(latent.head_dim)


def _deepseek_v2_details(config: ConfigFields) -> FamilyDetails:
    """Softmax scores that are not normalised, of all experts or of the best groups."""
    if config.flag("norm_topk_prob", False):
        raise UnsupportedModel("norm_topk_prob is not supported for deepseek_v2")
    method = config.text("topk_method", GREEDY)
    if method not in (GREEDY, OF_GROUPS):
        raise UnsupportedModel(f"topk_method {brief(method)} is not supported (supported: {GREEDY}, {OF_GROUPS})")
    found = read_glm_experts(config, first_dense=0, shared=2)
    routing = replace(found.routing, score=RouterScore.SOFTMAX, is_normalised=False, group_score=GroupScore.BEST)
    if method == GREEDY:
        routing = replace(routing, groups=1, kept_groups=1)
    experts = replace(found, routing=routing, names=replace(found.names, choice_bias=""))
    return _with_latents(config, experts, _QUERY_RANKS["deepseek_v2"])


def _glm4_moe_lite_details(config: ConfigFields) -> FamilyDetails:
    return _with_latents(config, read_glm_experts(config), _QUERY_RANKS["glm4_moe_lite"])


DEEPSEEK_V2 = Family("deepseek_v2", "DeepseekV2ForCausalLM", _deepseek_v2_details)
GLM4_MOE_LITE = Family("glm4_moe_lite", "Glm4MoeLiteForCausalLM", _glm4_moe_lite_details, default_epsilon=1e-5)

WITH_LATENTS = (DEEPSEEK_V2, GLM4_MOE_LITE)
