"""Mistral: Llama without biases, with a window in its first releases."""

from engine.models.config_fields import ConfigFields
from engine.models.network import Family, FamilyDetails
from engine.models.sliding_window import declared_window


def _details(config: ConfigFields) -> FamilyDetails:
    return FamilyDetails(sliding_window=declared_window(config))


MISTRAL = Family("mistral", "MistralForCausalLM", _details)
