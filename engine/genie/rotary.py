"""The rotary table of a Genie bundle. Its scaling is written in one of two places, or only in config.json."""

from collections.abc import Mapping

from engine.bundle.manifest import RopeSpec
from engine.errors import BundleError, CompileError
from engine.genie.config import CONFIG_FILE, GenieConfig
from engine.genie.json_fields import Fields
from engine.models.config_fields import ConfigFields
from engine.models.rotary import MAX_POSITIONS, read_rope

# Kinds whose text-only form is plain rotation: image positions are what they add.
PLAIN_KINDS = ("default", "partial", "qwen2vl-mrope", "qwen3vl-mrope")
SCALED_KINDS = ("llama3", "longrope", "linear")
RENAMED = {
    "factor": "factor",
    "low-freq-factor": "low_freq_factor",
    "high-freq-factor": "high_freq_factor",
    "original-max-position-embeddings": "original_max_position_embeddings",
    "short-factor": "short_factor",
    "long-factor": "long_factor",
    "attention-factor": "attention_factor",
}


def genie_rope(config: GenieConfig, model: Fields, rotary_dim: int, context_tokens: int) -> RopeSpec:
    """The table for graphs whose cos and sin have rotary_dim / 2 columns.

    model: config.json, possibly empty. context_tokens: widest compiled context, which decides a longrope table.
    Raises BundleError when no place tells the rotation, or for a kind that is not supported.
    """
    longest = model.integer("max_position_embeddings", 1, MAX_POSITIONS, config.context_tokens or context_tokens)
    values = _position_values(config) or _model_values(model)
    if values is None:
        raise BundleError(
            f"{CONFIG_FILE} tells no rotation: neither positional-encoding nor QnnHtp.rope-theta is there, "
            "and config.json has no rope_theta"
        )
    values.setdefault("original_max_position_embeddings", model.values.get("original_max_position_embeddings"))
    try:
        return read_rope(ConfigFields(values, CONFIG_FILE), rotary_dim, longest, context_tokens, False)
    except CompileError as error:
        raise BundleError(str(error)) from error


def _position_values(config: GenieConfig) -> dict[str, object] | None:
    """What genie_config.json says, in the keys of a Hugging Face config."""
    position = config.position
    if not position.values:
        return {"rope_theta": config.rope_theta} if config.rope_theta else None
    if position.text("type", "rope") != "rope":
        raise BundleError(f"{CONFIG_FILE}: positional encoding {position.text('type', '')!r} is not supported")
    values: dict[str, object] = {"rope_theta": position.values.get("rope-theta") or config.rope_theta or None}
    scaling = position.group("rope-scaling")
    kind = scaling.text("rope-type", "default")
    if kind in PLAIN_KINDS:
        return values
    if kind not in SCALED_KINDS:
        raise BundleError(f"{CONFIG_FILE}: rotary scaling {kind!r} is not supported")
    renamed = {new: scaling.values[old] for old, new in RENAMED.items() if scaling.has(old)}
    return {**values, "rope_scaling": {"rope_type": kind, **renamed}}


def _model_values(model: Fields) -> dict[str, object] | None:
    """What config.json says, without the share of a head that turns: the tensors tell it."""
    parameters = model.values.get("rope_parameters") or model.values.get("rope_scaling")
    if parameters is None and not model.has("rope_theta"):
        return None
    cleaned = dict(parameters) if isinstance(parameters, Mapping) else {}
    cleaned.pop("partial_rotary_factor", None)
    return {"rope_theta": model.values.get("rope_theta"), "rope_scaling": cleaned or None}
