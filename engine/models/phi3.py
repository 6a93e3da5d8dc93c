"""Phi-3, 3.5 and 4-mini: Llama with stacked projections, longrope and a partial rotation."""

from engine.models.config_fields import ConfigFields
from engine.models.network import Family, FamilyDetails, WeightNames
from engine.models.sliding_window import declared_window

_NAMES = WeightNames(
    qkv=("model.layers.{layer}.self_attn.qkv_proj",), gate_up=("model.layers.{layer}.mlp.gate_up_proj",)
)


def _details(config: ConfigFields) -> FamilyDetails:
    return FamilyDetails(sliding_window=declared_window(config), names=_NAMES)


PHI3 = Family("phi3", "Phi3ForCausalLM", _details, has_partial_rotary=True)
