"""LFM2 and LFM2.5: gated short convolutions, and attention with normed heads in some layers."""

from engine.bundle.specs import MOST_KERNEL, RecurrentKind, RecurrentSpec
from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.layer_kinds import checked_recurrence, recurrent_layers
from engine.models.network import Family, FamilyDetails, QkNorm, RecurrentNames, WeightNames

ATTENTION_LAYER, CONVOLUTION = "full_attention", "conv"
_LAYER = "model.layers.{layer}"
_NAMES = WeightNames(
    attention_norm=f"{_LAYER}.operator_norm",
    q_norm=f"{_LAYER}.self_attn.q_layernorm",
    k_norm=f"{_LAYER}.self_attn.k_layernorm",
    output=f"{_LAYER}.self_attn.out_proj",
    ffn_norm=f"{_LAYER}.ffn_norm",
    gate_up=(f"{_LAYER}.feed_forward.w1", f"{_LAYER}.feed_forward.w3"),
    down=f"{_LAYER}.feed_forward.w2",
    final_norm="model.embedding_norm",
)
_CONVOLUTION_NAMES = RecurrentNames(
    qkv_gate=(f"{_LAYER}.conv.in_proj",), conv=f"{_LAYER}.conv.conv", output=f"{_LAYER}.conv.out_proj"
)
MOST_FFN = 1 << 20


def _details(config: ConfigFields) -> FamilyDetails:
    if config.flag("conv_bias", False):
        raise UnsupportedModel("conv_bias is not supported for lfm2")
    return FamilyDetails(qk_norm=QkNorm.HEADS, names=_NAMES, recurrent_names=_CONVOLUTION_NAMES)


def _ffn(config: ConfigFields) -> int:
    """Of the width that is told two thirds, times a factor, up to a multiple (transformers `Lfm2MLP`)."""
    told = config.integer("intermediate_size", 1, MOST_FFN)
    told = config.integer("block_ff_dim", 1, MOST_FFN, told)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return told
    scaled = int(config.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * int(2 * told / 3))
    multiple = config.integer("block_multiple_of", 1, MOST_FFN, 256)
    return -(-scaled // multiple) * multiple


def _read_recurrent(config: ConfigFields, layers: int) -> RecurrentSpec:
    kinds = config.raw("layer_types")
    if kinds is None and isinstance(listed := config.raw("full_attn_idxs"), list):
        kinds = [ATTENTION_LAYER if layer in listed else CONVOLUTION for layer in range(layers)]
    found = recurrent_layers(kinds, layers, (CONVOLUTION,), (ATTENTION_LAYER,))
    if not found or len(found) == layers:
        kind = CONVOLUTION if found else ATTENTION_LAYER
        raise UnsupportedModel(f"layers that are all of type {kind!r} are not supported for lfm2")
    spec = RecurrentSpec(
        layers=found,
        key_heads=1,
        value_heads=1,
        key_dim=2,
        value_dim=config.integer("hidden_size", 2, 4096),
        kernel=config.integer("conv_L_cache", 2, MOST_KERNEL, 3),
        kind=RecurrentKind.SHORT_CONV,
    )
    return checked_recurrence(spec, layers)


LFM2 = Family(
    "lfm2",
    "Lfm2ForCausalLM",
    _details,
    default_theta=1_000_000.0,
    default_epsilon=1e-5,
    is_tied=True,
    read_ffn=_ffn,
    read_recurrent=_read_recurrent,
)
