"""Geometry of a network, as a manifest has it: sizes, rotations, and how each layer attends."""

from enum import StrEnum
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from engine.bundle.specs import Count, ExpertSpec, Heads, HeadSize, Layers, Name, RecurrentSpec, UnknownSize, Vocabulary

Frequency = Annotated[float, Meta(ge=0, le=1e6)]


class RopeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rotary embedding: angle[position, i] = position * inverse_frequencies[i]; cos and sin times `factor`. The table
    is final: every scaling is in it (longrope: chosen by the compiled context). Kind "none" with a frequency of 0:
    nothing turns, the model looks its positions up in a table. gain: queries are multiplied with 1 + gain * log(1 + k),
    k being how often `gain_every` tokens go into the position (Ministral 3). axes: by which of its positions a token of
    an image turns each pair, 0 = time, 1 = row, 2 = column (M-RoPE); () = it has one position."""

    kind: Name
    theta: Annotated[float, Meta(gt=0, le=1e12)]
    rotary_dim: HeadSize
    inverse_frequencies: Annotated[tuple[Frequency, ...], Meta(max_length=2048)]
    factor: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    is_interleaved: bool = False  # neighbours turn with each other, else the halves of the rotary part
    axes: Annotated[tuple[Annotated[int, Meta(ge=0, le=2)], ...], Meta(max_length=2048)] = ()
    gain: Annotated[float, Meta(ge=0, le=1e3)] = 0.0
    gain_every: Annotated[int, Meta(ge=1, le=1 << 24)] = 1

    def gains(self, positions: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.float32]:
        """What queries at those positions [N] are multiplied with [N]."""
        return np.asarray(1 + self.gain * np.log1p(positions // self.gain_every), np.float32)


class RotationKind(StrEnum):
    """What turns the queries and keys of a layer."""

    MODEL = "model"  # `ModelSpec.rope`
    LOCAL = "local"  # `ModelSpec.local_rope`
    NONE = "none"  # nothing does


class LayerAttention(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one layer."""

    window: Annotated[int, Meta(ge=0, le=1 << 24)] = 0  # columns that a row sees, its own among them; 0 = all
    rotation: RotationKind = RotationKind.MODEL
    kv_heads: Annotated[int, Meta(ge=0, le=4096)] = 0  # 0 = as the model says
    head_dim: Annotated[int, Meta(ge=0, le=4096)] = 0  # 0 = as the model says
    cache_of: Annotated[int, Meta(ge=-1, lt=1024)] = -1  # earlier layer whose keys and values it reads, -1 = its own

    @property
    def form(self) -> "LayerAttention":
        """What graphs and caches of layers differ in: the window and the heads."""
        return LayerAttention(self.window, kv_heads=self.kv_heads, head_dim=self.head_dim)


PLAIN_ATTENTION = LayerAttention()


class HeadForm(msgspec.Struct, frozen=True):
    """Heads of a layer. Widths: numbers of a token's queries, and of its keys or of its values."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim


class CacheGroup(msgspec.Struct, frozen=True):
    """Layers whose keys and values have one shape, by number among those with attention. window: as theirs."""

    layers: tuple[int, ...]
    window: int
    kv_heads: int
    head_dim: int

    @property
    def numbers(self) -> int:
        """Of a token's keys and values."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim


class ModelSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Geometry of the network."""

    family: Name
    layers: Layers
    hidden: UnknownSize
    heads: UnknownSize
    kv_heads: Heads
    head_dim: HeadSize
    ffn: UnknownSize
    vocab: Vocabulary
    rope: RopeSpec
    tied_head: bool = False
    parameters: Count = 0
    has_output_gate: bool = False  # outputs are multiplied with the sigmoid of a gate that comes with the query
    recurrent: RecurrentSpec | None = None  # layers with a state, None = there are none
    attention: Annotated[tuple[LayerAttention, ...], Meta(max_length=1024)] = ()  # of each layer, () = plain
    local_rope: RopeSpec | None = None
    has_sinks: bool = False  # each head has a score that takes its share of the weights and gives nothing
    experts: ExpertSpec | None = None  # None = every token goes through all weights
    layer_inputs: UnknownSize = 0  # numbers that each layer takes of a token beside the stream
    streams: Annotated[int, Meta(ge=1, le=16)] = 1  # of `hidden` numbers each, side by side between layers

    @property
    def stream_width(self) -> int:
        """Numbers of a row between layers."""
        return self.hidden * self.streams

    def attention_of(self, layer: int) -> LayerAttention:
        return self.attention[layer] if self.attention else PLAIN_ATTENTION

    def heads_of(self, attention: LayerAttention) -> HeadForm:
        """The heads of layers that attend so."""
        return HeadForm(self.heads, attention.kv_heads or self.kv_heads, attention.head_dim or self.head_dim)

    def owner_of(self, layer: int) -> int:
        """The layer whose keys and values a layer reads, mostly itself."""
        owner = self.attention_of(layer).cache_of
        return layer if owner < 0 else owner

    def rope_of(self, layer: int) -> RopeSpec | None:
        """What turns the queries and keys of a layer, None = nothing."""
        return self.ropes.get(self.attention_of(layer).rotation)

    @property
    def ropes(self) -> dict[RotationKind, RopeSpec]:
        found = {RotationKind.MODEL: self.rope, RotationKind.LOCAL: self.local_rope}
        return {kind: rope for kind, rope in found.items() if rope is not None}

    @property
    def has_unlike_caches(self) -> bool:
        """Whether keys and values of some layer have heads of their own, or are those of another layer."""
        return any(each.head_dim or each.kv_heads or each.cache_of >= 0 for each in self.attention)

    @property
    def shared_layers(self) -> frozenset[int]:
        """Layers whose keys and values others read."""
        return frozenset(each.cache_of for each in self.attention if each.cache_of >= 0)

    @property
    def layer_forms(self) -> tuple[LayerAttention, ...]:
        """Of the layers with attention, in order: what their graphs differ in."""
        return tuple(self.attention_of(layer).form for layer in self.attention_layers)

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """Of the layers with keys and values, in order."""
        return tuple(self.attention_of(layer).window for layer in self.attention_layers)

    @property
    def sight(self) -> int:
        """Columns that a row sees in the layer that sees most, 0 = all of them."""
        windows = self.layer_windows
        return max(windows, default=0) if all(windows) else 0

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """All layers with keys and values of their own, those that see everything first."""
        forms, found = self.layer_forms, []
        owners = {index for index, layer in enumerate(self.attention_layers) if self.owner_of(layer) == layer}
        for form in sorted(set(forms), key=lambda each: (each.window, each.kv_heads, each.head_dim)):
            layers = tuple(layer for layer, own in enumerate(forms) if own == form and layer in owners)
            heads = self.heads_of(form)
            found.append(CacheGroup(layers, form.window, heads.kv_heads, heads.head_dim))
        return tuple(found)

    @property
    def cache_numbers(self) -> int:
        """Of a token's keys and values, over all layers."""
        return sum(group.numbers for group in self.cache_groups)

    @property
    def window_share(self) -> float:
        """How much of them layers with a window have."""
        behind = sum(group.numbers for group in self.cache_groups if group.window)
        return behind / self.cache_numbers if behind else 0.0

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The layers with keys and values, in order."""
        spec = self.recurrent
        without = frozenset(spec.layers if spec and not spec.is_beside else ())
        return tuple(layer for layer in range(self.layers) if layer not in without)

    def recurrence_of(self, layer: int) -> RecurrentSpec | None:
        """What has the state of a layer, None where it has none. There may be keys and values beside it."""
        return self.recurrent if self.recurrent and layer in self.recurrent.layers else None
