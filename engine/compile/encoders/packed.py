"""An encoder's weights as its graphs will read them."""

from dataclasses import dataclass

from engine.compile.packed import PackedLinear, PackedTable
from engine.compile.weight_file import StoredTensor


@dataclass(frozen=True, slots=True)
class PackedNorm:
    """Of a layer norm, both [hidden]."""

    weight: StoredTensor
    bias: StoredTensor


@dataclass(frozen=True, slots=True)
class PackedEncoderLayer:
    """One layer; qkv holds the attention scale. up: the gate in front of it where there is one."""

    qkv: PackedLinear
    output: PackedLinear
    attention_norm: PackedNorm
    up: PackedLinear
    down: PackedLinear
    ffn_norm: PackedNorm


@dataclass(frozen=True, slots=True)
class PackedEncoder:
    """The whole network. token_types [types, hidden], positions [places, hidden] or None for rotary ones."""

    table: PackedTable
    token_types: StoredTensor
    positions: StoredTensor | None
    embedding_norm: PackedNorm
    layers: tuple[PackedEncoderLayer, ...]
