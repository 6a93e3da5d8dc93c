"""Families with norms behind attention and feed-forward: OLMo, EXAONE, GLM-4 and Gemma."""

from dataclasses import replace

from engine.bundle.model_spec import RotationKind
from engine.errors import UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import MINISTRAL3, MISTRAL, STACKED_NAMES
from engine.models.layer_kinds import declared_window, every_nth_full, sliding_layers, unlike, windows
from engine.models.network import Activation, Family, FamilyDetails, Multipliers, QkNorm, WeightNames, attention_biases

# OLMo 2 and 3: norms behind alone, and one over all heads of queries and of keys. OLMo 3 has windows; layers with one
# turn without the scaling.

_LAYER = "model.layers.{layer}"
_BEHIND = WeightNames(
    attention_norm="",
    attention_post_norm=f"{_LAYER}.post_attention_layernorm",
    ffn_norm="",
    ffn_post_norm=f"{_LAYER}.post_feedforward_layernorm",
)


def _olmo2_details(config: ConfigFields) -> FamilyDetails:
    return replace(attention_biases(config), qk_norm=QkNorm.ALL, names=_BEHIND)


def _olmo3_details(config: ConfigFields) -> FamilyDetails:
    sliding = sliding_layers(config, lambda layer: bool((layer + 1) % 4))
    attention = unlike(config, sliding, RotationKind.LOCAL, RotationKind.MODEL)
    theta = config.number("rope_theta", 1.0, 1e12, 500_000.0)
    return replace(_olmo2_details(config), attention=attention, local_theta=theta)


OLMO2 = Family("olmo2", "Olmo2ForCausalLM", _olmo2_details, default_theta=500_000.0, default_epsilon=1e-5)
OLMO3 = Family("olmo3", "Olmo3ForCausalLM", _olmo3_details, default_theta=500_000.0, default_epsilon=1e-5)


# EXAONE 4: norms behind alone, one for each head of queries and keys; with windows the other layers know no positions.
def _exaone4_details(config: ConfigFields) -> FamilyDetails:
    details = FamilyDetails(qk_norm=QkNorm.HEADS, names=_BEHIND)
    if not declared_window(config):
        return details
    kinds = RotationKind.MODEL, RotationKind.NONE
    return replace(details, attention=unlike(config, every_nth_full(config, 4), *kinds))


EXAONE4 = Family("exaone4", "Exaone4ForCausalLM", _exaone4_details, default_epsilon=1e-5)
# GLM-4: half of a head turns, neighbours with each other. That of 2025 has norms before and behind.
_GLM_NAMES = WeightNames(gate_up=(f"{_LAYER}.mlp.gate_up_proj",))
_GLM4_NAMES = replace(
    _GLM_NAMES, attention_post_norm=f"{_LAYER}.post_self_attn_layernorm", ffn_post_norm=f"{_LAYER}.post_mlp_layernorm"
)
IS_STACKED = "has_stacked_attention"  # of some GGUF files: queries, keys and values are one matrix


def _glm_details(config: ConfigFields) -> FamilyDetails:
    names = replace(_GLM_NAMES, qkv=STACKED_NAMES.qkv) if config.flag(IS_STACKED, False) else _GLM_NAMES
    return FamilyDetails(qkv_bias=config.flag("attention_bias", True), names=names)


GLM4 = Family(
    "glm4",
    "Glm4ForCausalLM",
    lambda config: FamilyDetails(qkv_bias=config.flag("attention_bias", True), names=_GLM4_NAMES),
    default_head_dim=128,
    has_partial_rotary=True,
    default_rotary_share=0.5,
    default_epsilon=1.5625e-7,
    is_interleaved=True,
)
GLM = replace(GLM4, name="glm", architecture="GlmForCausalLM", read_details=_glm_details)
# Gemma: norms multiply with 1 + w, the embedding with the root of its width, and the gate is GELU. From Gemma 2 on
# norms lie before and behind. Gemma 3 has a second rotation for layers with windows.
GEMMA_NAMES = WeightNames(
    attention_post_norm=f"{_LAYER}.post_attention_layernorm",
    ffn_norm=f"{_LAYER}.pre_feedforward_layernorm",
    ffn_post_norm=f"{_LAYER}.post_feedforward_layernorm",
)


def _gemma_details(config: ConfigFields) -> FamilyDetails:
    return replace(
        attention_biases(config),
        norm_offset=1.0,
        activation=Activation.GATED_GELU_TANH,
        multipliers=Multipliers(embedding=config.integer("hidden_size", 1, 1 << 16) ** 0.5),
    )


def read_cap(config: ConfigFields, key: str, default: float) -> float:
    """Of scores or logits; 0 = there is none, which null says too. default: where the config has no such key."""
    return 0.0 if key in config.names() and not config.has(key) else config.number(key, 0.0, 1e6, default)


def _gemma2_details(config: ConfigFields) -> FamilyDetails:
    plain = _gemma_details(config)
    scale = config.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0) ** -0.5
    return replace(
        plain,
        names=GEMMA_NAMES,
        multipliers=replace(plain.multipliers, attention=scale),
        attention=windows(config, sliding_layers(config, lambda layer: layer % 2 == 0)),
        attention_softcap=read_cap(config, "attn_logit_softcapping", 50.0),
        logit_softcap=read_cap(config, "final_logit_softcapping", 30.0),
    )


def _gemma3_details(config: ConfigFields) -> FamilyDetails:
    attention = unlike(config, every_nth_full(config, 6), RotationKind.LOCAL, RotationKind.MODEL)
    if read_cap(config, "attn_logit_softcapping", 0.0):  # which transformers and llama.cpp pass over
        raise UnsupportedModel("attn_logit_softcapping is not supported for gemma3")
    return replace(
        _gemma2_details(config),
        qk_norm=QkNorm.HEADS,
        attention=attention,
        local_theta=config.number("rope_local_base_freq", 1.0, 1e12, 10_000.0),
        attention_softcap=0.0,
        logit_softcap=read_cap(config, "final_logit_softcapping", 0.0),
    )


GEMMA = Family("gemma", "GemmaForCausalLM", _gemma_details, default_head_dim=256, is_tied=True)
GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", _gemma2_details, default_head_dim=256, is_tied=True)
GEMMA3 = Family("gemma3", "Gemma3ForCausalLM", _gemma3_details, default_head_dim=256, default_theta=1e6, is_tied=True)

POST_NORM = (OLMO2, OLMO3, EXAONE4, GLM, GLM4, GEMMA, GEMMA2, GEMMA3)


ROOT = "language_model.model."
_IMAGES = ("vision_tower.", "multi_modal_projector.")
_MISTRALS = {"mistral": MISTRAL, "ministral3": MINISTRAL3}


def _mistral3_details(config: ConfigFields) -> FamilyDetails:
    kind = config.text("model_type", MISTRAL.name)
    if kind not in _MISTRALS:
        known = ", ".join(_MISTRALS)
        raise UnsupportedModel(f"text_config: model_type {brief(kind)} is not supported (supported: {known})")
    config.integer("head_dim", 2, 1024)  # the classes assume different ones where it is missing
    return _MISTRALS[kind].read_details(config)


GEMMA3_NESTED = replace(
    GEMMA3,
    architecture="Gemma3ForConditionalGeneration",
    read_details=lambda config: replace(GEMMA3.read_details(config), images_both_ways=True),
    text_group="text_config",
    text_root=ROOT,
    ignored=_IMAGES,
    # Published configs leave out what the class of their text model says itself.
    text_defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    },
)
MISTRAL3 = Family(
    "mistral3",
    "Mistral3ForConditionalGeneration",
    _mistral3_details,
    text_group="text_config",
    text_root=ROOT,
    ignored=_IMAGES,
)

TEXT_MODELS = (GEMMA3_NESTED, MISTRAL3)
