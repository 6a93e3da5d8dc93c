"""Mamba2 layers, as several families have them: their sizes and the names of their tensors."""

import math
from dataclasses import dataclass

from engine.bundle.specs import MOST_KERNEL, RecurrentKind, RecurrentSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.layer_kinds import checked_recurrence
from engine.models.network import RecurrentNames

MAMBA, ATTENTION = ("linear_attention", "mamba"), ("full_attention", "attention")  # types of layers, old and new
_UNLIMITED = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])  # the last as transformers writes it


def mamba_names(mixer: str) -> RecurrentNames:
    """mixer: the module of a layer."""
    return RecurrentNames(
        qkv_gate=(f"{mixer}.in_proj",),
        a_log=f"{mixer}.A_log",
        dt_bias=f"{mixer}.dt_bias",
        conv=f"{mixer}.conv1d",
        norm=f"{mixer}.norm",
        output=f"{mixer}.out_proj",
        skip=f"{mixer}.D",
    )


MAMBA_NAMES = mamba_names("model.layers.{layer}.mamba")


@dataclass(frozen=True, slots=True)
class Mamba2Keys:
    """Keys of config.json. inner: of all values of a token, "" = they are as many as the heads have."""

    heads: str = "mamba_n_heads"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    head_dim: str = "mamba_d_head"
    kernel: str = "mamba_d_conv"
    inner: str = "mamba_d_ssm"


USUAL = Mamba2Keys()


def mamba2_spec(
    config: ConfigFields, layers: int, found: tuple[int, ...], keys: Mamba2Keys = USUAL, is_beside: bool = False
) -> RecurrentSpec:
    """Of the layers found, of so many. UnsupportedModel for what is not implemented."""
    if config.flag("mamba_proj_bias", False):
        raise UnsupportedModel("mamba_proj_bias is not supported")
    limit = config.raw("time_step_limit")
    if limit not in _UNLIMITED:
        raise UnsupportedModel(f"time_step_limit {brief(limit)} is not supported, only 0 to infinity is")
    heads = config.integer(keys.heads, 1, 1024, 128)
    spec = RecurrentSpec(
        layers=found,
        key_heads=config.integer(keys.groups, 1, 1024, 1),
        value_heads=heads,
        key_dim=config.integer(keys.state, 2, 1024, 256),
        value_dim=_head_dim(config, keys, heads),
        kernel=config.integer(keys.kernel, 2, MOST_KERNEL, 4),
        kind=RecurrentKind.MAMBA2,
        is_beside=is_beside,
    )
    return checked_recurrence(spec, layers)


def _head_dim(config: ConfigFields, keys: Mamba2Keys, heads: int) -> int:
    if not keys.inner:
        return config.integer(keys.head_dim, 2, 1024)
    inner = config.integer("mamba_expand", 1, 64, 2) * config.integer("hidden_size", 1, 1 << 16)
    inner = config.integer(keys.inner, 1, 1 << 20, inner)
    is_auto = config.raw(keys.head_dim) in (None, "auto")
    head_dim = inner // heads if is_auto else config.integer(keys.head_dim, 2, 1024)
    if head_dim * heads != inner or not 2 <= head_dim <= 1024:
        raise CompileError(
            f"config.json: {inner} values of a Mamba2 layer are not {keys.heads} ({heads}) times 2 to 1024"
        )
    return head_dim
