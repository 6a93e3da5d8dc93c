"""Families that add to a stream what attention and a feed-forward make of its norm: Llama and what is like it."""

from dataclasses import replace

from engine.bundle.manifest import DiffusionSpec
from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.errors import CompileError
from engine.models.config_fields import ConfigFields
from engine.models.layer_kinds import USUAL_WINDOW, declared_window, every_window, layer_count, switched_window
from engine.models.network import Family, FamilyDetails, Multipliers, QkNorm, WeightNames, attention_biases


# Llama and everything saved as it: Llama 2 and 3, SmolLM, TinyLlama, Yi.
def _biases(config: ConfigFields) -> FamilyDetails:
    return replace(attention_biases(config), ffn_bias=config.flag("mlp_bias", False))


LLAMA = Family("llama", "LlamaForCausalLM", _biases)


# Mistral and Ministral: Llama without biases, under a window in some releases.
MISTRAL = Family(
    "mistral", "MistralForCausalLM", lambda config: FamilyDetails(attention=every_window(config, USUAL_WINDOW))
)
MINISTRAL = replace(MISTRAL, name="ministral", architecture="MinistralForCausalLM")
# Ministral 3 and Devstral 2: YaRN; behind the original context scores grow.
MINISTRAL3 = Family(
    "ministral3",
    "Ministral3ForCausalLM",
    lambda config: FamilyDetails(attention=every_window(config, 0)),
    default_head_dim=128,
    default_epsilon=1e-5,
)
# Phi-3, 3.5 and 4-mini: Llama with stacked projections, longrope and a partial rotation.
_LAYER = "model.layers.{layer}"
STACKED_NAMES = WeightNames(qkv=(f"{_LAYER}.self_attn.qkv_proj",), gate_up=(f"{_LAYER}.mlp.gate_up_proj",))


PHI3 = Family(
    "phi3",
    "Phi3ForCausalLM",
    lambda config: FamilyDetails(attention=every_window(config, 0), names=STACKED_NAMES),
    has_partial_rotary=True,
)
# Qwen2 and Qwen2.5: query, key and value have a bias.
QWEN2 = Family(
    "qwen2", "Qwen2ForCausalLM", lambda config: FamilyDetails(qkv_bias=True, attention=switched_window(config))
)
# Qwen3: a norm over every head of queries and keys, before the rotation.
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    lambda config: replace(attention_biases(config), qk_norm=QkNorm.HEADS, attention=switched_window(config)),
    default_head_dim=128,
)
# SDAR: the network of Qwen3, trained to denoise blocks. Logits of a position are about that position itself.
MAX_BLOCK = 1024
DEFAULT_BLOCK = 4  # of the checkpoints whose names say nothing else


def _sdar_details(config: ConfigFields) -> FamilyDetails:
    vocabulary = config.integer("vocab_size", 1, 1 << 22)
    diffusion = DiffusionSpec(
        block_length=config.integer("block_size", 1, MAX_BLOCK, DEFAULT_BLOCK),
        mask_token=config.integer("mask_token_id", 0, vocabulary - 1),
    )
    return replace(QWEN3.read_details(config), diffusion=diffusion)


SDAR = Family("sdar", "SDARForCausalLM", _sdar_details, default_head_dim=QWEN3.default_head_dim)


# SmolLM3: Llama of which every fourth layer knows no positions.
def _smollm3_details(config: ConfigFields) -> FamilyDetails:
    layers, listed = layer_count(config), config.raw("no_rope_layers")
    if listed is None:
        interval = config.integer("no_rope_layer_interval", 1, 1024, 4)
        listed = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or any(turns not in (0, 1) for turns in listed):
        raise CompileError(f"config.json: no_rope_layers must hold {layers} numbers, 1 for a layer that turns")
    window = declared_window(config, 0) if config.flag("use_sliding_window", False) else 0
    kinds = (LayerAttention(window, RotationKind.NONE), LayerAttention())
    return replace(_biases(config), attention=tuple(kinds[turns] for turns in listed[:layers]))


SMOLLM3 = Family("smollm3", "SmolLM3ForCausalLM", _smollm3_details, default_theta=2_000_000.0, is_tied=True)
# Granite 3: Llama with four constants.
_MOST = 1e6


def _granite_details(config: ConfigFields) -> FamilyDetails:
    multipliers = Multipliers(
        embedding=config.number("embedding_multiplier", 1e-6, _MOST, 1.0),
        residual=config.number("residual_multiplier", 1e-6, _MOST, 1.0),
        attention=config.number("attention_multiplier", 1e-6, _MOST, 1.0),
        logits=1.0 / config.number("logits_scaling", 1e-6, _MOST, 1.0),
    )
    return replace(_biases(config), multipliers=multipliers)


GRANITE = Family("granite", "GraniteForCausalLM", _granite_details)
# Hunyuan: heads of queries and keys are normed behind the rotation.
_HUNYUAN_NAMES = WeightNames(q_norm=f"{_LAYER}.self_attn.query_layernorm", k_norm=f"{_LAYER}.self_attn.key_layernorm")


HUNYUAN = Family(
    "hunyuan_v1_dense",
    "HunYuanDenseV1ForCausalLM",
    lambda config: replace(_biases(config), qk_norm=QkNorm.TURNED_HEADS, names=_HUNYUAN_NAMES),
    default_epsilon=1e-5,
)


# ERNIE 4.5: neighbours turn with each other; one flag for all biases.
def _ernie_details(config: ConfigFields) -> FamilyDetails:
    has_bias = config.flag("use_bias", False)
    return FamilyDetails(qkv_bias=has_bias, output_bias=has_bias, ffn_bias=has_bias)


ERNIE = Family(
    "ernie4_5",
    "Ernie4_5ForCausalLM",
    _ernie_details,
    default_head_dim=128,
    default_theta=500_000.0,
    default_epsilon=1e-5,
    is_interleaved=True,
    is_tied=True,
)

DENSE = (LLAMA, MISTRAL, MINISTRAL, MINISTRAL3, PHI3, QWEN2, QWEN3, SDAR, SMOLLM3, GRANITE, HUNYUAN, ERNIE)
