"""Falcon-H1: every layer has attention and Mamba2 side by side; constants multiply what most matrices give."""

from dataclasses import replace

from engine.bundle.specs import RecurrentSpec
from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.layer_kinds import layer_count
from engine.models.mamba2 import MAMBA_NAMES, mamba2_spec
from engine.models.network import Factors, Family, FamilyDetails, Multipliers, WeightNames

_LAYER = "model.layers.{layer}"
_GATE, _UP, _DOWN = (f"{_LAYER}.feed_forward.{name}_proj" for name in ("gate", "up", "down"))
_NAMES = WeightNames(
    ffn_norm=f"{_LAYER}.pre_ff_layernorm", gate_up=(_GATE, _UP), down=_DOWN, final_norm="model.final_layernorm"
)
_LEAST, _MOST = 1e-6, 1e6


def _details(config: ConfigFields) -> FamilyDetails:
    for key in ("attention_bias", "mlp_bias", "projectors_bias"):
        if config.flag(key, False):
            raise UnsupportedModel(f"{key} is not supported for falcon_h1")
    has_norm = config.flag("mamba_rms_norm", False)
    if has_norm and config.flag("mamba_norm_before_gate", True):
        raise UnsupportedModel("mamba_norm_before_gate is not supported")
    return FamilyDetails(
        names=_NAMES,
        recurrent_names=MAMBA_NAMES if has_norm else replace(MAMBA_NAMES, norm=""),
        multipliers=Multipliers(
            embedding=_multiplier(config, "embedding_multiplier"), logits=_multiplier(config, "lm_head_multiplier")
        ),
        factors=_factors(config),
    )


def _multiplier(config: ConfigFields, key: str) -> float:
    return config.number(key, _LEAST, _MOST, 1.0)


def _multipliers(config: ConfigFields, key: str, count: int) -> tuple[float, ...]:
    return (1.0,) * count if config.raw(key) is None else config.numbers(key, count, _LEAST, _MOST)


def _factors(config: ConfigFields) -> Factors:
    """Of the outputs of matrices, which are multiplied with constants, as their inputs are."""
    names, spec = WeightNames(), read_mamba2(config, layer_count(config))
    of_gate, of_down = _multipliers(config, "mlp_multipliers", 2)
    heads_in, of_keys = (_multiplier(config, key) for key in ("attention_in_multiplier", "key_multiplier"))
    parts = spec.value_width, spec.value_width, spec.key_width, spec.key_width, spec.value_heads
    of_parts, state_in = _multipliers(config, "ssm_multipliers", 5), _multiplier(config, "ssm_in_multiplier")
    query, key, value = names.qkv
    found: Factors = {
        query: ((0, heads_in),),
        key: ((0, heads_in * of_keys),),
        value: ((0, heads_in),),
        names.output: ((0, _multiplier(config, "attention_out_multiplier")),),
        MAMBA_NAMES.output: ((0, _multiplier(config, "ssm_out_multiplier")),),
        MAMBA_NAMES.qkv_gate[0]: tuple(
            (sum(parts[:index]), state_in * factor) for index, factor in enumerate(of_parts)
        ),
        _GATE: ((0, of_gate),),
        _DOWN: ((0, of_down),),
    }
    return {name: runs for name, runs in found.items() if any(factor != 1.0 for _, factor in runs)}


def read_mamba2(config: ConfigFields, layers: int) -> RecurrentSpec:
    """Of all layers."""
    return mamba2_spec(config, layers, tuple(range(layers)), is_beside=True)


FALCON_H1 = Family("falcon_h1", "FalconH1ForCausalLM", _details, default_epsilon=1e-5, read_recurrent=read_mamba2)
