"""Which matrices get 8 bits: as many as a bundle of 4 bits needs to lose no more than llama.cpp's mixtures do.

A mixture is measured, not guessed: the bundle's form and llama.cpp's are both rounded to nearest and run on the same
calibration text, and matrices get 8 bits in the order of what their rounding alone loses for each weight.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.compile.calibration.forward import embedded, final_normed, head_logits, layer_output, mixing
from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.check.parity import mean_divergence
from engine.compile.quantisation.choose.choose import Forms
from engine.compile.quantisation.choose.form import CodeForm, nearest
from engine.compile.quantisation.choose.matrices import all_tensors, groups_of
from engine.compile.quantisation.rounding.codes import Coding, extreme_scales, rounded
from engine.compile.sources.checkpoint import Checkpoint, Float32, RememberedCheckpoint, RoundedCheckpoint
from engine.models.network import Network

Rounding = Callable[[Float32], Float32]
BLOCK, SUPER_BLOCK = 32, 256
REMEMBERED = 2_000_000_000  # bytes of floats, and as many of what codes stand for, that are not made again


def q4_0_of(network: Network) -> dict[str, Rounding]:
    """Every matrix of the layers as Q4_0; head and embedding have more bits there, and are left as they are."""
    return dict.fromkeys(all_tensors(network), q4_0)


def q4_k_m_of(network: Network) -> dict[str, Rounding]:
    """The same of Q4_K_M; values and what closes a layer have six or eight bits in half of the layers, as good as
    floats here (llama-quant.cpp, `llama_tensor_get_type`)."""
    found, layers = dict[str, Rounding](), network.spec.layers
    for layer in range(layers):
        qkv, output, gate_up, down = groups_of(network, layer)
        is_wide = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        narrow = (*(qkv.tensors[:2] if is_wide else qkv.tensors), *output.tensors, *gate_up.tensors)
        found |= dict.fromkeys((*narrow, *(() if is_wide else down.tensors)), q4_k)
    return found


def q4_0(weight: Float32, kind: GGMLQuantizationType = GGMLQuantizationType.Q4_0) -> Float32:
    """As it is where blocks of 32 inputs do not come out even."""
    return weight if weight.shape[1] % BLOCK else np.asarray(dequantize(quantize(weight, kind), kind), np.float32)


def q4_k(weight: Float32) -> Float32:
    """Q5_0 where blocks of 256 inputs do not come out even. The scales of blocks are left as they are, and not
    searched: both lose about as much."""
    if weight.shape[1] % SUPER_BLOCK:
        return q4_0(weight, GGMLQuantizationType.Q5_0)
    return rounded(weight, extreme_scales(weight, BLOCK, Coding.OFFSET)).floats()


# Of what rounding to nearest loses, what is left where codes are chosen, and of a target, what is aimed at.
CHOSEN, MARGIN = 0.6, 0.7
Q4_0_SHARE = 0.3
Q4_K_M_SHARE = 0.75  # what rounded activations lose comes on top, and other text may lose more
BANDS = 8  # of neighbouring layers, in which matrices of one kind are treated alike
Texts = Sequence[Sequence[int]]
Roundings = Mapping[str, Rounding]


@dataclass(frozen=True, slots=True)
class Mixture:
    """wide: tensors that get 8 bits. kl, target: in nats, as expected. share: of the layers' weights."""

    wide: frozenset[str]
    kl: float
    target: float
    share: float


@dataclass(frozen=True, slots=True)
class Aim:
    """share: of what a checkpoint loses with its matrices rounded so. name: of these codes."""

    roundings: Roundings
    share: float
    name: str

    @classmethod
    def of(cls, network: Network, like_q4_k_m: bool) -> "Aim":
        """A share of what Q4_K_M of the same floats loses, else of what Q4_0 does."""
        if like_q4_k_m:
            return cls(q4_k_m_of(network), Q4_K_M_SHARE, "Q4_K_M")
        return cls(q4_0_of(network), Q4_0_SHARE, "Q4_0")

    def target(self, checkpoint: Checkpoint, network: Network, texts: Texts) -> float:
        """In nats."""
        return self.share * Losses(checkpoint, network, texts).kl(self.roundings)


@dataclass(frozen=True, slots=True)
class _Unit:
    """Matrices that get 8 bits together. first: the layer that the first of them is in."""

    first: int
    tensors: tuple[str, ...]


class Losses:
    """Mean KL [nats] of rounded matrices against the checkpoint's floats. states: of floats before each layer."""

    def __init__(self, checkpoint: Checkpoint, network: Network, texts: Texts) -> None:
        checkpoint = RememberedCheckpoint(checkpoint, REMEMBERED)
        self.checkpoint, self.network = checkpoint, network
        self._lengths = [len(text) for text in texts]
        self._states = [np.concatenate(embedded(checkpoint, network, texts))]
        for layer in range(network.spec.layers):
            self._states.append(self._behind(LayerReader(checkpoint, network, layer), self._states[-1]))
        self._expected = self._logits(checkpoint, self._states[-1])

    def kl(self, roundings: Roundings, first: int = 0, has_byte_caches: bool = False) -> float:
        """What is lost with these matrices rounded, of which none is in a layer before `first`: there all is float.
        has_byte_caches: keys and values are rounded to 8 bits too."""
        rounded = RoundedCheckpoint(self.checkpoint, roundings)
        states = self._states[first]
        for layer in range(first, self.network.spec.layers):
            states = self._behind(LayerReader(rounded, self.network, layer, has_byte_caches), states)
        return mean_divergence(self._expected, self._logits(rounded, states))

    def _behind(self, reader: LayerReader, states: Float32) -> Float32:
        return layer_output(reader, states, mixing(reader, self._lengths))

    def _logits(self, checkpoint: Checkpoint, states: Float32) -> Float32:
        return head_logits(checkpoint, self.network, final_normed(checkpoint, self.network, states))


def widened(losses: Losses, forms: Forms, kept: frozenset[str], target: float, of_caches: float = 0.0) -> Mixture:
    """The fewest matrices that reach the target. kept: those whose codes a file has, and which stay what they are.
    of_caches: what 8-bit caches lose, 0.0 where there are none."""
    found = _units(losses.network, kept)
    narrow, wide_rows = (_roundings(losses.checkpoint, found, form) for form in (forms.layers, forms.wide))

    def of(roundings: Roundings, units: Sequence[_Unit]) -> Roundings:
        names = (name for unit in units for name in unit.tensors)
        return {name: roundings[name] for name in names if name in roundings}

    def weights(units: Sequence[_Unit]) -> int:
        return sum(math.prod(losses.checkpoint.shape(name)) for unit in units for name in unit.tensors)

    worth = {unit: losses.kl(of(narrow, [unit]), unit.first) / weights([unit]) for unit in found}
    units = sorted(worth, key=lambda unit: -worth[unit])

    @cache
    def kl(count: int) -> float:
        """With 8 bits for the first `count` units; what caches lose, no choice of codes wins back."""
        roundings = {**of(wide_rows, units[:count]), **of(narrow, units[count:])}
        return of_caches + CHOSEN * max(0.0, losses.kl(roundings, 0, of_caches > 0) - of_caches)

    count = bisect_left(range(len(units)), True, key=lambda tried: kl(tried) <= MARGIN * target)
    wide = frozenset(name for unit in units[:count] for name in unit.tensors)
    return Mixture(wide, kl(count), target, weights(units[:count]) / max(weights(units), 1))


def _roundings(checkpoint: Checkpoint, units: Sequence[_Unit], form: CodeForm | None) -> Roundings:
    """Of each matrix in a form, made once; none without a form, for 8 bits are as good as floats."""
    if form is None:
        return {}
    names = [name for unit in units for name in unit.tensors]
    rounded = RoundedCheckpoint(checkpoint, dict.fromkeys(names, lambda weight: nearest(weight, form).floats()))
    known = RememberedCheckpoint(rounded, REMEMBERED)

    def read(name: str, weight: Float32) -> Float32:
        return known.tensor(name, weight.shape)

    return {name: partial(read, name) for name in names}


def _units(network: Network, kept: frozenset[str]) -> list[_Unit]:
    """Groups that read the same inputs, joined over a band of layers."""
    found = []
    for band in np.array_split(np.arange(network.spec.layers), min(BANDS, network.spec.layers)):
        layers = [groups_of(network, int(layer)) for layer in band]
        for kind in zip(*layers, strict=True):
            tensors = tuple(name for group in kind for name in group.without(kept).tensors)
            if tensors:
                found.append(_Unit(int(band[0]), tensors))
    return found
