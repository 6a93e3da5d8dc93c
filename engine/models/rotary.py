"""Rotary position embedding: every scaling type ends as one list of inverse frequencies and one factor.

Definitions: transformers `modeling_rope_utils` (llama3: Llama 3.1 model card; longrope: arXiv 2402.13753; yarn: arXiv
2309.00071).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.model_spec import RopeSpec
from engine.errors import CompileError, UnsupportedModel
from engine.models.config_fields import ConfigFields

Frequencies = NDArray[np.float64]
MAX_POSITIONS = 16_777_216
DEFAULT_THETA = 10_000.0
PROPORTIONAL = "proportional"
FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers


@dataclass(frozen=True, slots=True)
class RopeReading:
    """What a rotation is read for. Lengths in tokens."""

    head_dim: int
    max_position: int
    compiled_context: int
    has_partial: bool = False  # the config may say another share
    share: float = 1.0  # part of a head that turns unless the config says otherwise
    theta: float = DEFAULT_THETA  # where the config does not tell
    is_interleaved: bool = False
    kind: str = ""  # the layers it is for where the family tells them apart, "" = all
    sections: tuple[int, ...] = ()  # pairs that turn by time, row, column if the config tells none, () = one position
    is_woven: bool = False  # rows and columns take turns in every third pair


@dataclass(frozen=True, slots=True)
class RotaryInputs:
    """What a scaling rule may look at. plain: unscaled inverse frequencies [rotary_dim / 2]. Lengths in tokens."""

    parameters: ConfigFields
    plain: Frequencies
    theta: float
    max_position: int
    original_max: int
    compiled_context: int


def read_rope(config: ConfigFields, wanted: RopeReading) -> RopeSpec:
    """Read either spelling (`rope_parameters` or `rope_scaling` + `rope_theta`); UnsupportedModel for unknown types."""
    parameters, outer = _parameters(config, wanted)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    kind = ALIASES.get(kind, kind)
    if kind == "dynamic" and parameters.raw("alpha") is not None:
        kind = "ntk_alpha"
    if kind == "mrope" and wanted.sections:
        kind = "default"
    scalings = SCALINGS | (OF_WHOLE_HEADS if wanted.kind == FULL else {})
    if kind not in scalings:
        raise UnsupportedModel(f"rotary type {kind!r} is not supported (supported: {', '.join(scalings)})")
    theta = parameters.number("rope_theta", 1.0, 1e12, outer.number("rope_theta", 1.0, 1e12, wanted.theta))
    rotary_dim = wanted.head_dim if kind == PROPORTIONAL else _rotary_dim(outer, parameters, wanted)
    plain = 1.0 / theta ** (np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    original = parameters.integer("original_max_position_embeddings", 1, MAX_POSITIONS, wanted.max_position)
    original = outer.integer("original_max_position_embeddings", 1, MAX_POSITIONS, original)
    inputs = RotaryInputs(parameters, plain, theta, wanted.max_position, original, wanted.compiled_context)
    frequencies, factor = scalings[kind](inputs)
    # float32, as trained: a frequency with more digits than the weights ever saw drifts away at far positions.
    rounded = tuple(float(value) for value in frequencies.astype(np.float32))
    axes = _axes(parameters, wanted, len(plain)) if wanted.sections else ()
    # Ministral 3 makes scores larger from the original context on: up to there nothing changes.
    beta = parameters.number("llama_4_scaling_beta", 0.0, 1e3, 0.0)
    gain = (beta, inputs.original_max) if beta and inputs.compiled_context > inputs.original_max else (0.0, 1)
    return RopeSpec(kind, theta, rotary_dim, rounded, factor, wanted.is_interleaved, axes, *gain)


def _axes(parameters: ConfigFields, wanted: RopeReading, pairs: int) -> tuple[int, ...]:
    """By which position each pair turns (transformers `recomposition_frequencies`)."""
    given = parameters.numbers("mrope_section", 3, 0, pairs) if parameters.raw("mrope_section") else wanted.sections
    sections = tuple(map(int, given))
    if sum(sections) != pairs:
        raise CompileError(f"config.json: mrope_section must add up to {pairs}, half of a head, it is {sections}")
    if not wanted.is_woven:
        return tuple(axis for axis, count in enumerate(sections) for _ in range(count))
    axes = [0] * pairs  # rows and columns take turns, as long as there are any
    for axis in (1, 2):
        places = range(axis, min(pairs, 3 * sections[axis]), 3)
        axes[axis : 3 * sections[axis] : 3] = [axis] * len(places)
    return tuple(axes)


def _parameters(config: ConfigFields, wanted: RopeReading) -> tuple[ConfigFields, ConfigFields]:
    """What the config says of the rotation, and where else it may say so: nowhere for layers with a window."""
    parameters = config.group("rope_parameters") or config.group("rope_scaling") or ConfigFields({})
    groups = {kind: parameters.group(kind) for kind in (FULL, SLIDING) if parameters.raw(kind) is not None}
    if wanted.kind == SLIDING:
        return groups.get(SLIDING) or ConfigFields({}), ConfigFields({})
    if not groups:
        return parameters, config
    if wanted.kind != FULL:
        raise UnsupportedModel("rotary parameters that differ between layers are not supported for this architecture")
    return groups.get(FULL) or ConfigFields({}), config


def _rotary_dim(config: ConfigFields, parameters: ConfigFields, wanted: RopeReading) -> int:
    outer = config.number("partial_rotary_factor", 0.0, 1.0, wanted.share)
    share = parameters.number("partial_rotary_factor", 0.0, 1.0, outer)
    if share != 1.0 and not wanted.has_partial:
        raise UnsupportedModel(f"partial_rotary_factor {share} is not supported for this architecture")
    rotary_dim = int(wanted.head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2:
        raise CompileError(f"config.json: the rotary part of a head must be even and at least 2, it is {rotary_dim}")
    return rotary_dim


def _linear(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    return inputs.plain / inputs.parameters.number("factor", 1e-3, 1e6), 1.0


def _llama3(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """Long waves are slowed by `factor`, short ones kept, those between are interpolated over waves per window."""
    keys = ("factor", "low_freq_factor", "high_freq_factor")
    factor, low, high = (inputs.parameters.number(key, 1e-3, 1e6) for key in keys)
    if high <= low:
        raise CompileError(f"config.json: high_freq_factor ({high}) must be greater than low_freq_factor ({low})")
    waves_per_window = inputs.original_max * inputs.plain / (2 * math.pi)
    kept_share = np.clip((waves_per_window - low) / (high - low), 0.0, 1.0)
    return inputs.plain * (kept_share + (1.0 - kept_share) / factor), 1.0


def _longrope(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """One table for the whole bundle, chosen by its context: cached keys cannot change tables half-way."""
    key = "long_factor" if inputs.compiled_context > inputs.original_max else "short_factor"
    table = np.array(inputs.parameters.numbers(key, len(inputs.plain), 1e-3, 1e6))
    stretch = inputs.parameters.number("factor", 1e-3, 1e6, inputs.max_position / inputs.original_max)
    is_stretched = stretch > 1.0 and inputs.original_max > 1
    default = math.sqrt(1.0 + math.log(stretch) / math.log(inputs.original_max)) if is_stretched else 1.0
    return inputs.plain / table, inputs.parameters.number("attention_factor", 1e-3, 1e3, default)


def _yarn(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """Slow frequencies are divided by `factor`, fast ones kept, a ramp between; its logarithm scales cos and sin."""
    parameters, size = inputs.parameters, 2 * len(inputs.plain)
    factor = parameters.number("factor", 1e-3, 1e6, inputs.max_position / inputs.original_max)

    def place(turns: float) -> float:
        """Where the frequency lies that turns so often within the original context."""
        return size * math.log(inputs.original_max / (turns * 2 * math.pi)) / (2 * math.log(inputs.theta))

    low = place(parameters.number("beta_fast", 1e-3, 1e6, 32.0))
    high = place(parameters.number("beta_slow", 1e-3, 1e6, 1.0))
    if parameters.flag("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, size - 1.0)
    ramp = np.clip((np.arange(len(inputs.plain)) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    own, all_heads = (parameters.number(key, 0.0, 1e3, 0.0) for key in ("mscale", "mscale_all_dim"))
    stretch = _stretch(factor, own) / _stretch(factor, all_heads) if own and all_heads else _stretch(factor, 1.0)
    scaled = inputs.plain / factor * ramp + inputs.plain * (1.0 - ramp)
    return scaled, parameters.number("attention_factor", 1e-3, 1e3, stretch)


def _stretch(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _ntk_alpha(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """Hunyuan: a larger base, whatever the length."""
    size = 2 * len(inputs.plain)
    theta = inputs.theta * inputs.parameters.number("alpha", 1e-3, 1e9) ** (size / (size - 2))
    return 1.0 / theta ** (np.arange(0, size, 2, dtype=np.float64) / size), 1.0


def _listed(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """A divisor for each frequency, as GGUF files write the outcome of Llama 3's rule."""
    return inputs.plain / np.array(inputs.parameters.numbers("factors", len(inputs.plain), 1e-6, 2e30)), 1.0


def _proportional(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """Gemma 4: frequencies are those of a whole head, of which the first share turns and the rest stands still."""
    share = inputs.parameters.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    turns = np.arange(len(inputs.plain)) < int(share * 2 * len(inputs.plain) // 2)
    return np.where(turns, inputs.plain, 0.0) / inputs.parameters.number("factor", 1e-3, 1e6, 1.0), 1.0


SCALINGS: dict[str, Callable[[RotaryInputs], tuple[Frequencies, float]]] = {
    "default": lambda inputs: (inputs.plain, 1.0),
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "yarn": _yarn,
    "ntk_alpha": _ntk_alpha,
    "factors": _listed,
}
OF_WHOLE_HEADS = {PROPORTIONAL: _proportional}  # of layers without a window, where others have one

ALIASES = {"su": "longrope"}  # what the first long Phi-3 configs called it
