"""Qwen3.5: gated DeltaNet layers with full attention every fourth layer, whose output is gated and heads turn in part.

All three rotary sections of text are at its position.
"""

from dataclasses import replace

from engine.bundle.specs import MOST_KERNEL, RecurrentSpec
from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.layer_kinds import checked_recurrence, recurrent_layers
from engine.models.network import Family, FamilyDetails, QkNorm

RECURRENT_LAYER, ATTENTION_LAYER = "linear_attention", "full_attention"
NESTED = "model.language_model."  # how names of text models within larger ones begin


def _details(config: ConfigFields) -> FamilyDetails:
    attention_bias = config.flag("attention_bias", False)
    return FamilyDetails(
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=QkNorm.HEADS,
        has_output_gate=True,
        norm_offset=1.0,
        ignored=("mtp.",),
    )


def read_recurrent(config: ConfigFields, layers: int) -> RecurrentSpec:
    """Which layers are recurrent, and how large. UnsupportedModel for kinds of layers that are not implemented."""
    kinds = config.raw("layer_types")
    if kinds is None:
        interval = config.integer("full_attention_interval", 1, 1024, 4)
        kinds = [ATTENTION_LAYER if (layer + 1) % interval == 0 else RECURRENT_LAYER for layer in range(layers)]
    found = recurrent_layers(kinds, layers, (RECURRENT_LAYER,), (ATTENTION_LAYER,))
    if not found:
        raise UnsupportedModel(f"no layer is of type {RECURRENT_LAYER!r}: that is not supported for this architecture")
    key_heads = config.integer("linear_num_key_heads", 1, 1024, 16)
    spec = RecurrentSpec(
        layers=found,
        key_heads=key_heads,
        value_heads=config.integer("linear_num_value_heads", 1, 1024, 32),
        key_dim=config.integer("linear_key_head_dim", 2, 1024, 128),
        value_dim=config.integer("linear_value_head_dim", 2, 1024, 128),
        kernel=config.integer("linear_conv_kernel_dim", 2, MOST_KERNEL, 4),
    )
    return checked_recurrence(spec, layers)


QWEN3_5 = Family(
    "qwen3_5",
    "Qwen3_5ForCausalLM",
    _details,
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
