"""Granite 4: attention among Mamba2 layers or alone, a feed-forward for every token, and experts in some sizes."""

import math
from dataclasses import replace

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.bundle.specs import MOST_KERNEL, RecurrentKind, RecurrentSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import GRANITE
from engine.models.expert_families import granite_experts
from engine.models.layer_kinds import layer_count
from engine.models.network import FamilyDetails, RecurrentNames, WeightNames

MAMBA, ATTENTION = ("linear_attention", "mamba"), ("full_attention", "attention")
# What GGUF files say: gate and up are two matrices, and a feed-forward has its usual names.
SPLIT_MLP = "split_shared_mlp"
_UNLIMITED = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])  # the last as transformers writes it
_SHARED, _MIXER = "model.layers.{layer}.shared_mlp", "model.layers.{layer}.mamba"
_NAMES = WeightNames(gate_up=(f"{_SHARED}.input_linear",), down=f"{_SHARED}.output_linear")
_MAMBA_NAMES = RecurrentNames(
    qkv_gate=(f"{_MIXER}.in_proj",),
    a_log=f"{_MIXER}.A_log",
    dt_bias=f"{_MIXER}.dt_bias",
    conv=f"{_MIXER}.conv1d",
    norm=f"{_MIXER}.norm",
    output=f"{_MIXER}.out_proj",
    skip=f"{_MIXER}.D",
)


def _details(config: ConfigFields) -> FamilyDetails:
    kinds = layer_count(config) * (LayerAttention(0, RotationKind.NONE),)
    is_split = config.flag(SPLIT_MLP, False)
    return replace(
        GRANITE.read_details(config),
        names=WeightNames() if is_split else _NAMES,
        recurrent_names=_MAMBA_NAMES,
        attention=() if config.raw("position_embedding_type") == "rope" else kinds,
        experts=granite_experts(config, is_split) if config.integer("num_local_experts", 0, 4096, 0) else None,
    )


def _ffn(config: ConfigFields) -> int:
    return config.integer("shared_intermediate_size", 1, 1 << 20)


def read_mamba2(config: ConfigFields, layers: int) -> RecurrentSpec | None:
    """The Mamba2 layers, None where there are none. UnsupportedModel for what is not implemented."""
    kinds = config.raw("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise CompileError(f"config.json: layer_types must name {layers} layers, as num_hidden_layers says")
    if unknown := [kind for kind in kinds if kind not in (*MAMBA, *ATTENTION)]:
        raise UnsupportedModel(f"layer type {brief(unknown[0])} is not supported")
    found = tuple(layer for layer, kind in enumerate(kinds) if kind in MAMBA)
    if not found:
        return None
    if config.flag("mamba_proj_bias", False):
        raise UnsupportedModel("mamba_proj_bias is not supported")
    limit = config.raw("time_step_limit")
    if limit not in _UNLIMITED:
        raise UnsupportedModel(f"time_step_limit {brief(limit)} is not supported, only 0 to infinity is")
    heads = config.integer("mamba_n_heads", 1, 1024, 128)
    inner = config.integer("mamba_expand", 1, 64, 2) * config.integer("hidden_size", 1, 1 << 16)
    inner = config.integer("mamba_d_ssm", 1, 1 << 20, inner)
    is_auto = config.raw("mamba_d_head") in (None, "auto")
    head_dim = inner // heads if is_auto else config.integer("mamba_d_head", 2, 1024)
    if head_dim * heads != inner or not 2 <= head_dim <= 1024:
        raise CompileError(
            f"config.json: {inner} values of a Mamba2 layer are not mamba_n_heads ({heads}) times 2 to 1024"
        )
    spec = RecurrentSpec(
        layers=found,
        key_heads=config.integer("mamba_n_groups", 1, 1024, 1),
        value_heads=heads,
        key_dim=config.integer("mamba_d_state", 2, 1024, 256),
        value_dim=head_dim,
        kernel=config.integer("mamba_d_conv", 2, MOST_KERNEL, 4),
        kind=RecurrentKind.MAMBA2,
    )
    if fault := spec.fault(layers):
        raise UnsupportedModel(f"config.json: {fault}")
    return spec


GRANITE4 = replace(
    GRANITE,
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    read_details=_details,
    read_ffn=_ffn,
    read_recurrent=read_mamba2,
)
