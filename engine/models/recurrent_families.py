"""Families of which some layers carry a state. Qwen3.5: gated DeltaNet layers with full attention every fourth layer,
whose output is gated and heads turn in part; all three rotary sections of text are at its position. LFM2 and LFM2.5:
gated short convolutions, and attention with normed heads in some layers."""

from collections.abc import Mapping
from dataclasses import replace

from engine.bundle.specs import MOST_KERNEL, RecurrentKind, RecurrentSpec
from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.layer_kinds import recurrent_layers
from engine.models.network import Family, FamilyDetails, QkNorm, RecurrentNames, WeightNames, attention_biases

RECURRENT_LAYER, CONVOLUTION, ATTENTION_LAYER = "linear_attention", "conv", "full_attention"
NESTED = "model.language_model."  # how names of text models within larger ones begin


def _qwen3_5_details(config: ConfigFields) -> FamilyDetails:
    details = attention_biases(config)
    return replace(details, qk_norm=QkNorm.HEADS, has_output_gate=True, norm_offset=1.0, ignored=("mtp.",))


def read_recurrent(config: ConfigFields, layers: int) -> RecurrentSpec:
    """Which layers are recurrent, and how large. UnsupportedModel for kinds of layers that are not implemented."""
    kinds = config.raw("layer_types")
    if kinds is None:
        interval = config.integer("full_attention_interval", 1, 1024, 4)
        kinds = [ATTENTION_LAYER if (layer + 1) % interval == 0 else RECURRENT_LAYER for layer in range(layers)]
    found = recurrent_layers(kinds, layers, (RECURRENT_LAYER,), (ATTENTION_LAYER,))
    if not found:
        raise UnsupportedModel(f"no layer is of type {RECURRENT_LAYER!r}: that is not supported for this architecture")
    return RecurrentSpec(
        layers=found,
        key_heads=config.integer("linear_num_key_heads", 1, 1024, 16),
        value_heads=config.integer("linear_num_value_heads", 1, 1024, 32),
        key_dim=config.integer("linear_key_head_dim", 2, 1024, 128),
        value_dim=config.integer("linear_value_head_dim", 2, 1024, 128),
        kernel=config.integer("linear_conv_kernel_dim", 2, MOST_KERNEL, 4),
    )


QWEN3_5 = Family(
    "qwen3_5",
    "Qwen3_5ForCausalLM",
    _qwen3_5_details,
    default_head_dim=256,
    has_partial_rotary=True,
    default_rotary_share=0.25,
    read_recurrent=read_recurrent,
)
QWEN3_5_NESTED = replace(
    QWEN3_5,
    architecture="Qwen3_5ForConditionalGeneration",
    sections=(11, 11, 10),
    is_woven=True,
    text_group="text_config",
    text_root=NESTED,
    ignored=("model.visual.",),
)


_LAYER = "model.layers.{layer}"
_LFM2_NAMES = WeightNames(
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


def _lfm2_details(config: ConfigFields) -> FamilyDetails:
    if config.flag("conv_bias", False):
        raise UnsupportedModel("conv_bias is not supported for lfm2")
    return FamilyDetails(qk_norm=QkNorm.HEADS, names=_LFM2_NAMES, recurrent_names=_CONVOLUTION_NAMES)


def _translated(values: Mapping[str, object]) -> dict[str, object]:
    """From what the first published configs call it."""
    names = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
    return {**values, **{new: values[old] for old, new in names.items() if values.get(old) is not None}}


def _lfm2_ffn(config: ConfigFields) -> int:
    """Of the width that is told two thirds, times a factor, up to a multiple (transformers `Lfm2MLP`)."""
    told = config.integer("intermediate_size", 1, MOST_FFN)
    if not config.flag("block_auto_adjust_ff_dim", True):
        return told
    scaled = int(config.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * int(2 * told / 3))
    multiple = config.integer("block_multiple_of", 1, MOST_FFN, 256)
    return -(-scaled // multiple) * multiple


def _lfm2_recurrence(config: ConfigFields, layers: int) -> RecurrentSpec:
    kinds = config.raw("layer_types")
    if kinds is None and isinstance(listed := config.raw("full_attn_idxs"), list):
        kinds = [ATTENTION_LAYER if layer in listed else CONVOLUTION for layer in range(layers)]
    found = recurrent_layers(kinds, layers, (CONVOLUTION,), (ATTENTION_LAYER,))
    if not found or len(found) == layers:
        kind = CONVOLUTION if found else ATTENTION_LAYER
        raise UnsupportedModel(f"layers that are all of type {kind!r} are not supported for lfm2")
    return RecurrentSpec(
        layers=found,
        key_heads=1,
        value_heads=1,
        key_dim=2,
        value_dim=config.integer("hidden_size", 2, 4096),
        kernel=config.integer("conv_L_cache", 2, MOST_KERNEL, 3),
        kind=RecurrentKind.SHORT_CONV,
    )


LFM2 = Family(
    "lfm2",
    "Lfm2ForCausalLM",
    _lfm2_details,
    default_theta=1_000_000.0,
    default_epsilon=1e-5,
    is_tied=True,
    read_ffn=_lfm2_ffn,
    read_recurrent=_lfm2_recurrence,
    translated=_translated,
)
