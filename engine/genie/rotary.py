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
MODEL_FILE = "config.json"
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
    position = config.position
    if position.text("type", "rope") != "rope":
        raise BundleError(f"{CONFIG_FILE}: positional encoding {position.text('type', '')!r} is not supported")
    theta = position.values.get("rope-theta") or config.rope_theta or _model_theta(model)
    if not theta:
        raise BundleError(
            f"{CONFIG_FILE} tells no rotation: neither positional-encoding nor QnnHtp has a rope-theta, "
            "and config.json has no rope_theta"
        )
    # Where Genie is told theta alone, as of longrope models, the scaling stands in config.json only.
    is_told = position.has("rope-scaling")
    scaling, file = (_genie_scaling(position), CONFIG_FILE) if is_told else (_model_scaling(model), MODEL_FILE)
    values = {
        "rope_theta": theta,
        "rope_scaling": scaling,
        "original_max_position_embeddings": model.values.get("original_max_position_embeddings"),
    }
    if scaling.get("rope_type") == "longrope" and not model.has("max_position_embeddings"):
        _check_stretch(scaling)
    try:
        return read_rope(ConfigFields(values, file), rotary_dim, longest, context_tokens, False)
    except CompileError as error:
        raise BundleError(str(error)) from error


def _genie_scaling(position: Fields) -> dict[str, object]:
    """What rope-scaling says, in the keys of a Hugging Face config; {} for plain rotation."""
    scaling = position.group("rope-scaling")
    renamed = {new: scaling.values[old] for old, new in RENAMED.items() if scaling.has(old)}
    if renamed and not scaling.has("rope-type"):
        raise BundleError(f"{CONFIG_FILE}: rope-scaling has {', '.join(scaling.values)} but no rope-type")
    kind = scaling.text("rope-type", "default")
    if kind in PLAIN_KINDS:
        return {}
    if kind not in SCALED_KINDS:
        raise BundleError(f"{CONFIG_FILE}: rotary scaling {kind!r} is not supported")
    return {"rope_type": kind, **renamed}


def _model_scaling(model: Fields) -> dict[str, object]:
    """What config.json says; not the share of a head that turns, which the tensors tell, and not theta."""
    parameters = _model_parameters(model)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    numbers = {key: value for key, value in parameters.items() if key in RENAMED.values()}
    return {} if kind in PLAIN_KINDS else {**numbers, "rope_type": "longrope" if kind == "su" else kind}


def _model_parameters(model: Fields) -> Mapping[str, object]:
    parameters = model.values.get("rope_parameters") or model.values.get("rope_scaling")
    return parameters if isinstance(parameters, Mapping) else {}


def _model_theta(model: Fields) -> object:
    return model.values.get("rope_theta") or _model_parameters(model).get("rope_theta")


def _check_stretch(scaling: Mapping[str, object]) -> None:
    """Longrope's factor on cos and sin follows from how far the model was stretched, which must be told somewhere."""
    if not {"factor", "attention_factor"} & scaling.keys():
        raise BundleError(
            f"{CONFIG_FILE}: rope-scaling of type longrope has no factor, and {MODEL_FILE} has no "
            "max_position_embeddings to tell it from"
        )
