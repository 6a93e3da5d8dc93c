"""Llama and everything saved as it: Llama 2 and 3, SmolLM, TinyLlama, Yi."""

from engine.models.config_fields import ConfigFields
from engine.models.network import Family, FamilyDetails


def _details(config: ConfigFields) -> FamilyDetails:
    attention_bias = config.flag("attention_bias", False)
    return FamilyDetails(qkv_bias=attention_bias, output_bias=attention_bias, ffn_bias=config.flag("mlp_bias", False))


LLAMA = Family("llama", "LlamaForCausalLM", _details)
