"""Rotary position embedding: every scaling type ends as one list of inverse frequencies and one factor.

Definitions: transformers `modeling_rope_utils` (llama3: Llama 3.1 model card; longrope: arXiv 2402.13753).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import RopeSpec
from engine.errors import CompileError, UnsupportedModel
from engine.models.config_fields import ConfigFields

Frequencies = NDArray[np.float64]
MAX_POSITIONS = 16_777_216
DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class RotaryInputs:
    """What a scaling rule may look at. plain: unscaled inverse frequencies [rotary_dim / 2]. Lengths in tokens."""

    parameters: ConfigFields
    plain: Frequencies
    max_position: int
    original_max: int
    compiled_context: int


def read_rope(
    config: ConfigFields,
    head_dim: int,
    max_position: int,
    compiled_context: int,
    has_partial: bool,
    default_share: float = 1.0,
) -> RopeSpec:
    """Read either spelling (`rope_parameters` or `rope_scaling` + `rope_theta`); UnsupportedModel for unknown types.

    default_share: the part of a head that turns unless the config says otherwise.
    """
    parameters = config.group("rope_parameters") or config.group("rope_scaling") or ConfigFields({})
    for key in ("full_attention", "sliding_attention"):
        if parameters.raw(key) is not None:
            raise UnsupportedModel("rotary parameters that differ between layers are not supported")
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    kind = ALIASES.get(kind, kind)
    if kind not in SCALINGS:
        raise UnsupportedModel(f"rotary type {kind!r} is not supported (supported: {', '.join(SCALINGS)})")
    theta = parameters.number("rope_theta", 1.0, 1e12, config.number("rope_theta", 1.0, 1e12, DEFAULT_THETA))
    rotary_dim = _rotary_dim(config, parameters, head_dim, has_partial, default_share)
    plain = 1.0 / theta ** (np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    original = parameters.integer("original_max_position_embeddings", 1, MAX_POSITIONS, max_position)
    original = config.integer("original_max_position_embeddings", 1, MAX_POSITIONS, original)
    inputs = RotaryInputs(parameters, plain, max_position, original, compiled_context)
    frequencies, factor = SCALINGS[kind](inputs)
    # float32, as trained: a frequency with more digits than the weights ever saw drifts away at far positions.
    rounded = tuple(float(value) for value in frequencies.astype(np.float32))
    return RopeSpec(kind, theta, rotary_dim, rounded, factor)


def _rotary_dim(
    config: ConfigFields, parameters: ConfigFields, head_dim: int, has_partial: bool, default_share: float
) -> int:
    outer = config.number("partial_rotary_factor", 0.0, 1.0, default_share)
    share = parameters.number("partial_rotary_factor", 0.0, 1.0, outer)
    if share != 1.0 and not has_partial:
        raise UnsupportedModel(f"partial_rotary_factor {share} is not supported for this architecture")
    rotary_dim = int(head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2:
        raise CompileError(f"config.json: the rotary part of a head must be even and at least 2, it is {rotary_dim}")
    return rotary_dim


def _unscaled(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    return inputs.plain, 1.0


def _linear(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    return inputs.plain / inputs.parameters.number("factor", 1e-3, 1e6), 1.0


def _llama3(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """Long waves are slowed by `factor`, short ones kept, those between are interpolated over waves per window."""
    factor = inputs.parameters.number("factor", 1e-3, 1e6)
    low = inputs.parameters.number("low_freq_factor", 1e-3, 1e6)
    high = inputs.parameters.number("high_freq_factor", 1e-3, 1e6)
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
    default = 1.0
    if stretch > 1.0 and inputs.original_max > 1:
        default = math.sqrt(1.0 + math.log(stretch) / math.log(inputs.original_max))
    return inputs.plain / table, inputs.parameters.number("attention_factor", 1e-3, 1e3, default)


def _listed(inputs: RotaryInputs) -> tuple[Frequencies, float]:
    """A divisor for each frequency, as GGUF files write the outcome of Llama 3's rule."""
    return inputs.plain / np.array(inputs.parameters.numbers("factors", len(inputs.plain), 1e-6, 1e6)), 1.0


SCALINGS: dict[str, Callable[[RotaryInputs], tuple[Frequencies, float]]] = {
    "default": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "factors": _listed,
}

ALIASES = {"su": "longrope"}  # what the first long Phi-3 configs called it
