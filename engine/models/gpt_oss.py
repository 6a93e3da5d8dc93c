"""gpt-oss: heads with sinks, biases everywhere, a window in every other layer, experts with a clipped gate."""

from dataclasses import replace

from engine.models.config_fields import ConfigFields
from engine.models.experts import (
    MLP,
    ClippedSwiglu,
    ExpertDetails,
    ExpertForm,
    ExpertKeys,
    ExpertNames,
    read_experts,
    stacked_form,
)
from engine.models.layer_kinds import layer_count, sliding_layers, windows
from engine.models.network import Family, FamilyDetails, WeightNames

_EXPERTS = f"{MLP}.experts"
_BIASES = (f"{_EXPERTS}.gate_up_proj_bias", f"{_EXPERTS}.down_proj_bias")
# As published, codes of MXFP4; as transformers writes floats; as GGUF files have them.
_FORMS = (
    ExpertForm(
        (f"{_EXPERTS}.gate_up_proj.weight",), f"{_EXPERTS}.down_proj.weight", is_interleaved=True, biases=_BIASES
    ),
    ExpertForm(
        (f"{_EXPERTS}.gate_up_proj",), f"{_EXPERTS}.down_proj", is_turned=True, is_interleaved=True, biases=_BIASES
    ),
    replace(stacked_form(_EXPERTS), biases=tuple(f"{_EXPERTS}.{name}_proj.bias" for name in ("gate", "up", "down"))),
)
_NAMES = ExpertNames(router=f"{MLP}.router", forms=_FORMS)


def _details(config: ConfigFields) -> FamilyDetails:
    has_bias = config.flag("attention_bias", True)
    keys = ExpertKeys(count="num_local_experts", ffn="intermediate_size")
    clipped = ClippedSwiglu(
        config.number("swiglu_alpha", 1e-3, 1e3, 1.702), config.number("swiglu_limit", 1e-3, 1e6, 7.0)
    )
    spec = read_experts(config, keys, tuple(range(layer_count(config))))
    experts = ExpertDetails(spec, names=_NAMES, has_router_bias=True, clipped=clipped)
    attention = windows(config, sliding_layers(config, lambda layer: layer % 2 == 0))
    names = WeightNames(sinks="model.layers.{layer}.self_attn.sinks")
    return FamilyDetails(has_bias, has_bias, attention=attention, names=names, experts=experts)


GPT_OSS = Family("gpt_oss", "GptOssForCausalLM", _details, default_theta=150_000.0, default_epsilon=1e-5)
