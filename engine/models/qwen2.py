"""Qwen2 and Qwen2.5: query, key and value have a bias."""

from engine.models.config_fields import ConfigFields
from engine.models.network import Family, FamilyDetails
from engine.models.sliding_window import switched_window


def _details(config: ConfigFields) -> FamilyDetails:
    return FamilyDetails(qkv_bias=True, sliding_window=switched_window(config))


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _details)
