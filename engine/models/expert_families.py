"""Families whose layers choose experts for each token: Qwen3-MoE and what is like it."""

import math
from dataclasses import replace

from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models import layer_kinds
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import ERNIE, GRANITE, LLAMA, QWEN3
from engine.models.experts import (
    MLP,
    ClippedSwiglu,
    ExpertDetails,
    ExpertForm,
    ExpertKeys,
    ExpertNames,
    GroupScore,
    RouterScore,
    Routing,
    form_of_each,
    read_experts,
    sparse_layers,
    stacked_form,
    usual_forms,
)
from engine.models.network import Family, FamilyDetails, Multipliers, QkNorm, WeightNames, attention_biases
from engine.models.recurrent_families import LFM2, QWEN3_5, QWEN3_5_NESTED


# Qwen3-MoE: Qwen3 with experts.
def _all_layers(config: ConfigFields) -> tuple[int, ...]:
    return tuple(range(layer_kinds.layer_count(config)))


def _sparse_experts(config: ConfigFields, keys: ExpertKeys, names: ExpertNames) -> ExpertDetails:
    spec = read_experts(config, keys, sparse_layers(config, layer_kinds.layer_count(config)))
    return ExpertDetails(spec, Routing(is_normalised=config.flag("norm_topk_prob", False)), names)


QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    lambda config: replace(QWEN3.read_details(config), experts=_sparse_experts(config, ExpertKeys(), ExpertNames())),
)


# Qwen2-MoE, Qwen3.5-MoE and Qwen3.6-MoE: every token goes through one more feed-forward, times a gate.


_SHARED_EXPERT = f"{MLP}.shared_expert"
_GATED_NAMES = ExpertNames(
    shared_gate_up=(f"{_SHARED_EXPERT}.gate_proj", f"{_SHARED_EXPERT}.up_proj"),
    shared_down=f"{_SHARED_EXPERT}.down_proj",
    shared_gate=f"{MLP}.shared_expert_gate",
)
_SHARED = ExpertKeys(shared="shared_expert_intermediate_size")


def _qwen2_moe_details(config: ConfigFields) -> FamilyDetails:
    experts = _sparse_experts(config, _SHARED, _GATED_NAMES)
    return FamilyDetails(
        qkv_bias=config.flag("qkv_bias", True), attention=layer_kinds.switched_window(config), experts=experts
    )


def _qwen3_5_details(config: ConfigFields) -> FamilyDetails:
    experts = ExpertDetails(read_experts(config, _SHARED, _all_layers(config)), names=_GATED_NAMES)
    return replace(QWEN3_5.read_details(config), experts=experts)


QWEN2_MOE = Family("qwen2_moe", "Qwen2MoeForCausalLM", _qwen2_moe_details)
QWEN3_5_MOE = replace(QWEN3_5, name="qwen3_5_moe", architecture="Qwen3_5MoeForCausalLM", read_details=_qwen3_5_details)
QWEN3_5_MOE_NESTED = replace(
    QWEN3_5_NESTED,
    name="qwen3_5_moe",
    architecture="Qwen3_5MoeForConditionalGeneration",
    read_details=_qwen3_5_details,
)


# Mixtral: Mistral with experts whose matrices are numbered.
_BLOCK = "model.layers.{layer}.block_sparse_moe"
_OF_BLOCK = ExpertKeys(count="num_local_experts", ffn="intermediate_size")
_MIXTRAL_NAMES = ExpertNames(
    router=f"{_BLOCK}.gate",
    forms=(form_of_each(f"{_BLOCK}.experts", "w1", "w3", "w2"), stacked_form(f"{_BLOCK}.experts")),
)


def _mixtral_details(config: ConfigFields) -> FamilyDetails:
    experts = ExpertDetails(read_experts(config, _OF_BLOCK, _all_layers(config)), names=_MIXTRAL_NAMES)
    return FamilyDetails(attention=layer_kinds.every_window(config, 0), experts=experts)


MIXTRAL = Family("mixtral", "MixtralForCausalLM", _mixtral_details, default_theta=1_000_000.0, default_epsilon=1e-5)


# OLMoE: Llama with norms over all heads of queries and of keys, and experts.
def _olmoe_details(config: ConfigFields) -> FamilyDetails:
    if config.raw("clip_qkv") is not None:
        raise UnsupportedModel("clip_qkv is not supported")
    experts = ExpertDetails(
        read_experts(config, ExpertKeys(ffn="intermediate_size"), _all_layers(config)),
        Routing(is_normalised=config.flag("norm_topk_prob", False)),
    )
    return replace(LLAMA.read_details(config), qk_norm=QkNorm.ALL, experts=experts)


OLMOE = Family("olmoe", "OlmoeForCausalLM", _olmoe_details, default_epsilon=1e-5)
# Granite 3 with experts; those of 4 without recurrent layers have one more feed-forward.
_GRANITE_NAMES = ExpertNames(
    router=f"{_BLOCK}.router.layer",
    forms=(
        ExpertForm((f"{_BLOCK}.input_linear.weight",), f"{_BLOCK}.output_linear.weight"),
        stacked_form(f"{_BLOCK}.experts"),
    ),
)
_SHARED_MLP = "model.layers.{layer}.shared_mlp"
_GRANITE_SHARED_NAMES = replace(
    _GRANITE_NAMES, shared_gate_up=(f"{_SHARED_MLP}.input_linear",), shared_down=f"{_SHARED_MLP}.output_linear"
)


# As GGUF files name them.
_GRANITE_SPLIT_NAMES = replace(
    _GRANITE_NAMES,
    shared_gate_up=(f"{_SHARED_MLP}.gate_proj", f"{_SHARED_MLP}.up_proj"),
    shared_down=f"{_SHARED_MLP}.down_proj",
)


def _granite_details(config: ConfigFields) -> FamilyDetails:
    # Files of llama.cpp have that feed-forward under the same architecture.
    has_shared = config.integer("shared_intermediate_size", 0, 1 << 20, 0)
    plain = ExpertDetails(read_experts(config, _OF_BLOCK, _all_layers(config)), names=_GRANITE_NAMES)
    experts = granite_experts(config, is_split=True) if has_shared else plain
    return replace(GRANITE.read_details(config), experts=experts)


def granite_experts(config: ConfigFields, is_split: bool = False) -> ExpertDetails:
    """With one more feed-forward. is_split: gate and up of that are two matrices."""
    keys = replace(_OF_BLOCK, shared="shared_intermediate_size")
    names = _GRANITE_SPLIT_NAMES if is_split else _GRANITE_SHARED_NAMES
    return ExpertDetails(read_experts(config, keys, _all_layers(config)), names=names)


GRANITE_MOE = replace(GRANITE, name="granitemoe", architecture="GraniteMoeForCausalLM", read_details=_granite_details)
GRANITE_MOE_SHARED = replace(
    GRANITE,
    name="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    read_details=lambda config: replace(GRANITE.read_details(config), experts=granite_experts(config)),
)
# GLM-4.5 and 4.6: sigmoid scores, experts chosen with a bias, among groups; the first layers are dense.
_SHARED_EXPERTS = f"{MLP}.shared_experts"
_GLM_NAMES = ExpertNames(
    choice_bias=f"{MLP}.gate.e_score_correction_bias",
    shared_gate_up=(f"{_SHARED_EXPERTS}.gate_proj", f"{_SHARED_EXPERTS}.up_proj"),
    shared_down=f"{_SHARED_EXPERTS}.down_proj",
)


def read_glm_experts(config: ConfigFields, first_dense: int = 1, shared: int = 1) -> ExpertDetails:
    """As DeepSeek-V3 chooses them. first_dense, shared: where the config does not say. CompileError for other kinds."""
    layers = layer_kinds.layer_count(config)
    dense = config.integer("first_k_dense_replace", 0, layers, first_dense)
    kinds = config.raw("mlp_layer_types") or ["dense"] * dense + ["sparse"] * (layers - dense)
    if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
        raise CompileError(f"config.json: mlp_layer_types must name {layers} layers, each dense or sparse")
    sparse = tuple(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    shared = config.integer("n_shared_experts", 0, 64, shared) * config.integer("moe_intermediate_size", 1, 1 << 20)
    spec = read_experts(config, ExpertKeys(count="n_routed_experts"), sparse, shared)
    names = _GLM_NAMES if shared else replace(_GLM_NAMES, shared_gate_up=(), shared_down="")
    return ExpertDetails(spec, grouped_routing(config, spec.count), names)


def grouped_routing(config: ConfigFields, count: int) -> Routing:
    """Of so many experts, as DeepSeek-V3 has it. UnsupportedModel for groups that they cannot be shared out to."""
    groups = config.integer("n_group", 1, 4096, 1)
    if count % groups:
        raise UnsupportedModel(f"n_group {groups} does not divide the {count} experts")
    return Routing(
        RouterScore.SIGMOID,
        config.flag("norm_topk_prob", True),
        config.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
        groups,
        config.integer("topk_group", 1, groups, 1),
        GroupScore.BEST_TWO,
    )


def _glm4_moe_details(config: ConfigFields) -> FamilyDetails:
    return FamilyDetails(
        qkv_bias=config.flag("attention_bias", False),
        qk_norm=QkNorm.HEADS if config.flag("use_qk_norm", False) else QkNorm.NONE,
        experts=read_glm_experts(config),
        ignored=_drafting(config),
    )


def _drafting(config: ConfigFields) -> tuple[str, ...]:
    """How names of what drafts tokens begin in folders, and in files."""
    return f"model.layers.{layer_kinds.layer_count(config)}.", "mtp."


GLM4_MOE = Family(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    _glm4_moe_details,
    has_partial_rotary=True,
    default_rotary_share=0.5,
    default_epsilon=1e-5,
)
# ERNIE 4.5 with experts: softmax scores, experts chosen with a bias.
_ERNIE_NAMES = replace(_GLM_NAMES, choice_bias=f"{MLP}.moe_statics.e_score_correction_bias")


def _ernie_moe_details(config: ConfigFields) -> FamilyDetails:
    if config.flag("use_bias", False):
        raise UnsupportedModel("use_bias is not supported for ernie4_5_moe")
    layers = layer_kinds.layer_count(config)
    first = config.integer("moe_layer_start_index", 0, layers, 1)
    raw_last, step = config.raw("moe_layer_end_index"), config.integer("moe_layer_interval", 1, 1024, 1)
    last = layers - 1 if raw_last in (None, -1) else config.integer("moe_layer_end_index", 0, 1024)
    listed = tuple(layer for layer in range(first, min(last, layers - 1) + 1) if (layer + 1) % step == 0)
    shared = config.integer("moe_num_shared_experts", 0, 64, 2) * config.integer("moe_intermediate_size", 1, 1 << 20)
    names = _ERNIE_NAMES if shared else replace(_ERNIE_NAMES, shared_gate_up=(), shared_down="")
    spec = read_experts(config, ExpertKeys(count="moe_num_experts", chosen="moe_k"), listed, shared)
    experts = ExpertDetails(spec, Routing(), names)
    return replace(ERNIE.read_details(config), experts=experts, ignored=("model.mtp_",))


ERNIE_MOE = replace(
    ERNIE,
    name="ernie4_5_moe",
    architecture="Ernie4_5_MoeForCausalLM",
    read_details=_ernie_moe_details,
    default_head_dim=None,
)

# LFM2 with experts: sigmoid scores, experts chosen with a bias; the first layers are dense.
_LFM2 = "model.layers.{layer}.feed_forward"
_LFM2_NAMES = ExpertNames(
    router=f"{_LFM2}.gate",
    forms=(form_of_each(f"{_LFM2}.experts", "w1", "w3", "w2"), *usual_forms(f"{_LFM2}.experts")[1:]),
    choice_bias=f"{_LFM2}.expert_bias",
)


def _lfm2_details(config: ConfigFields) -> FamilyDetails:
    layers = layer_kinds.layer_count(config)
    dense = config.integer("num_dense_layers", 0, layers, 2)
    is_normalised, scale = config.flag("norm_topk_prob", True), config.number("routed_scaling_factor", 1e-6, 1e6, 1.0)
    names = _LFM2_NAMES if config.flag("use_expert_bias", True) else replace(_LFM2_NAMES, choice_bias="")
    routing = Routing(RouterScore.SIGMOID, is_normalised, scale)
    experts = ExpertDetails(read_experts(config, ExpertKeys(), tuple(range(dense, layers))), routing, names)
    return replace(LFM2.read_details(config), experts=experts)


LFM2_MOE = replace(LFM2, name="lfm2_moe", architecture="Lfm2MoeForCausalLM", read_details=_lfm2_details, read_ffn=None)

WITH_EXPERTS = (
    LFM2_MOE,
    QWEN3_MOE,
    QWEN2_MOE,
    QWEN3_5_MOE,
    QWEN3_5_MOE_NESTED,
    MIXTRAL,
    OLMOE,
    GRANITE_MOE,
    GRANITE_MOE_SHARED,
    GLM4_MOE,
    ERNIE_MOE,
)


GREEDY, OF_GROUPS = "greedy", "group_limited_greedy"


def _with_latents(config: ConfigFields, experts: ExpertDetails, query_rank: int) -> FamilyDetails:
    """query_rank: where the config does not say."""
    latent = layer_kinds.read_latent(config, query_rank)
    return replace(
        attention_biases(config),
        multipliers=Multipliers(attention=_scale(config, latent)),
        names=WeightNames(qkv=latent.names),
        latent=latent,
        experts=experts,
        ignored=_drafting(config),
    )


def _scale(config: ConfigFields, latent: layer_kinds.LatentAttention) -> float:
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
    return _with_latents(config, experts, 1536)


DEEPSEEK_V2 = Family("deepseek_v2", "DeepseekV2ForCausalLM", _deepseek_v2_details)
GLM4_MOE_LITE = Family(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    lambda config: _with_latents(config, read_glm_experts(config), 768),
    default_epsilon=1e-5,
)

WITH_LATENTS = (DEEPSEEK_V2, GLM4_MOE_LITE)


_GPT_OSS_EXPERTS = f"{MLP}.experts"
_GPT_OSS_BIASES = (f"{_GPT_OSS_EXPERTS}.gate_up_proj_bias", f"{_GPT_OSS_EXPERTS}.down_proj_bias")
# As published, codes of MXFP4; as transformers writes floats; as GGUF files have them.
_GPT_OSS_FORMS = (
    ExpertForm(
        (f"{_GPT_OSS_EXPERTS}.gate_up_proj.weight",),
        f"{_GPT_OSS_EXPERTS}.down_proj.weight",
        is_interleaved=True,
        biases=_GPT_OSS_BIASES,
    ),
    ExpertForm(
        (f"{_GPT_OSS_EXPERTS}.gate_up_proj",),
        f"{_GPT_OSS_EXPERTS}.down_proj",
        is_turned=True,
        is_interleaved=True,
        biases=_GPT_OSS_BIASES,
    ),
    replace(
        stacked_form(_GPT_OSS_EXPERTS),
        biases=tuple(f"{_GPT_OSS_EXPERTS}.{name}_proj.bias" for name in ("gate", "up", "down")),
    ),
)
_GPT_OSS_NAMES = ExpertNames(router=f"{MLP}.router", forms=_GPT_OSS_FORMS)


def _gpt_oss_details(config: ConfigFields) -> FamilyDetails:
    alpha, limit = config.number("swiglu_alpha", 1e-3, 1e3, 1.702), config.number("swiglu_limit", 1e-3, 1e6, 7.0)
    spec = read_experts(config, _OF_BLOCK, _all_layers(config))
    return replace(
        attention_biases(config, default=True),
        attention=layer_kinds.windows(config, layer_kinds.sliding_layers(config, lambda layer: layer % 2 == 0), 128),
        names=WeightNames(sinks="model.layers.{layer}.self_attn.sinks"),
        experts=ExpertDetails(spec, names=_GPT_OSS_NAMES, has_router_bias=True, clipped=ClippedSwiglu(alpha, limit)),
    )


GPT_OSS = Family("gpt_oss", "GptOssForCausalLM", _gpt_oss_details, default_theta=150_000.0, default_epsilon=1e-5)
