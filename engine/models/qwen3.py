"""Qwen3: a norm over every head of queries and keys, before the rotation."""

from engine.models.config_fields import ConfigFields
from engine.models.network import Family, FamilyDetails
from engine.models.sliding_window import switched_window


def _details(config: ConfigFields) -> FamilyDetails:
    attention_bias = config.flag("attention_bias", False)
    return FamilyDetails(
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        has_qk_norm=True,
        sliding_window=switched_window(config),
    )


QWEN3 = Family("qwen3", "Qwen3ForCausalLM", _details, default_head_dim=128)
