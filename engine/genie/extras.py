"""What a Genie folder has beside its graphs: hexserve.json, the forecast prefix, rotations, windows, embeddings. Keys
of tables: what qai-hub-models 0.65 writes into genie_config.json (`dialog.embedding`); without `lut-path` its usual
name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.bundle.specs import ForecastSpec, TableSpec
from engine.bundle.weight_files import EMBEDDING_FILE, read_forecast_prefix
from engine.errors import BundleError, CompileError
from engine.files import brief
from engine.genie.config import CONFIG_FILE, MAX_TOKENS, SELF_SPECULATION, Fields, GenieConfig, file_in, load_optional
from engine.genie.roles import Role
from engine.genie.variants import Variant
from engine.models.config_fields import ConfigFields
from engine.models.rotary import MAX_POSITIONS, RopeReading, read_rope

EXTRAS_FILE = "hexserve.json"
CHAINED, APART = "chained", "apart"
KEYS = ("lm_head_weight", "parts")


@dataclass(frozen=True, slots=True)
class GenieExtras:
    """What a folder tells beside Genie's own files."""

    lm_head_weight: Path | None = None  # weights that an LM head takes as an input, None where it has its own
    are_parts_apart: bool = False  # embeddings may come between runs of parts; else a step is one run of the chain


def read_extras(folder: Path) -> GenieExtras:
    """Read the file; nothing is told where there is none. BundleError names the key."""
    fields = load_optional(folder / EXTRAS_FILE)
    unknown = next((key for key in fields.values if key not in KEYS), None)
    if unknown is not None:
        raise BundleError(f"{EXTRAS_FILE}: unknown key {brief(unknown)} (known: {', '.join(KEYS)})")
    parts = fields.text("parts", CHAINED)
    if parts not in (CHAINED, APART):
        raise BundleError(f"{EXTRAS_FILE}: parts must be '{CHAINED}' or '{APART}', not {brief(parts)}")
    name, key = fields.text("lm_head_weight", ""), f"{EXTRAS_FILE}: lm_head_weight"
    weight = file_in(folder, name, key) if name else None
    if name and weight is None:
        raise BundleError(f"{key}: {folder} has no file {brief(name)}")
    return GenieExtras(weight, parts == APART)


PREFIX_FILE = "kv-cache.primary.qnn-htp"
OWN_FILE = "forecast_prefix.bin"
MOST_COLUMNS = 1024
MOST_LEVELS, MOST_BRANCHES = 8, 16


def read_forecast(
    folder: Path, config: GenieConfig, model: ModelSpec, kv_dtype: str
) -> tuple[ForecastSpec, Path] | None:
    """What goes into the manifest, and its file; None where the dialog does not speculate by itself, or the prefix is
    missing: it then is an ordinary one. BundleError names the key or the file that is wrong."""
    settings = config.forecast
    if settings is None or not settings.has("forecast-prefix-name"):
        return None
    name = f"{settings.text('forecast-prefix-name', '')}/{PREFIX_FILE}"
    path = file_in(folder, name, f"{CONFIG_FILE}: dialog.{SELF_SPECULATION}.forecast-prefix-name")
    if path is None:
        return None
    branches = settings.integers("branches") or (3,)  # as libGenie takes them where there are none
    if len(branches) > MOST_LEVELS or not all(1 <= width <= MOST_BRANCHES for width in branches):
        raise BundleError(
            f"{CONFIG_FILE}: dialog.{SELF_SPECULATION}.branches must be up to {MOST_LEVELS} numbers from 1 to "
            f"{MOST_BRANCHES}, they are {list(branches)[:MOST_LEVELS]}"
        )
    columns = settings.integer("forecast-prefix", 1, MOST_COLUMNS, 16)
    read_forecast_prefix(folder, ForecastSpec(name, columns, 0, branches), model, kv_dtype)
    return ForecastSpec(OWN_FILE, columns, config.vocabulary or model.vocab, branches), path


# Kinds whose text-only form is plain rotation: image positions are what they add.
BY_AXIS = ("qwen2vl-mrope", "qwen3vl-mrope")  # rows and columns of an image: in blocks, and woven
PLAIN_KINDS = ("default", "partial", *BY_AXIS)
SCALED_KINDS = ("llama3", "longrope", "linear")
OF_TENSORS = ("partial_rotary_factor", "rope_theta", "type")  # told by them, or read elsewhere
PROPORTIONAL = "proportional"  # the first frequencies of a whole table, the others do not turn
MODEL_FILE = "config.json"
TOLD = {
    "factor": "factor",
    "low-freq-factor": "low_freq_factor",
    "high-freq-factor": "high_freq_factor",
    "original-max-position-embeddings": "original_max_position_embeddings",
    "short-factor": "short_factor",
    "long-factor": "long_factor",
}
RENAMED = TOLD | {"attention-factor": "attention_factor"}  # which Genie is not told of


def genie_rope(config: GenieConfig, model: Fields, rotary_dim: int, context_tokens: int) -> RopeSpec:
    """The table for cos and sin of rotary_dim / 2 columns. model: config.json, possibly empty. context_tokens: widest
    context, which decides a longrope table. BundleError when no place tells the rotation, or for an unknown kind."""
    longest = model.integer("max_position_embeddings", 1, MAX_POSITIONS, config.context_tokens or context_tokens)
    position = config.position
    if position.text("type", "rope") != "rope":
        raise BundleError(f"{CONFIG_FILE}: positional encoding {position.text('type', '')!r} is not supported")
    own_theta = model.values.get("rope_theta") or _model_parameters(model).get("rope_theta")
    theta = position.values.get("rope-theta") or config.rope_theta or own_theta
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
    # Longrope's factor on cos and sin follows from how far the model was stretched, which must be told somewhere.
    is_stretched = scaling.get("rope_type") == "longrope" and not {"factor", "attention_factor"} & scaling.keys()
    if is_stretched and not model.has("max_position_embeddings"):
        raise BundleError(
            f"{CONFIG_FILE}: rope-scaling of type longrope has no factor, and {MODEL_FILE} has no "
            "max_position_embeddings to tell it from"
        )
    told = position.group("rope-scaling")
    kind, sections = told.text("rope-type", ""), told.integers("mrope-section")
    if sections and (kind not in BY_AXIS or len(sections) != 3):
        raise BundleError(f"{CONFIG_FILE}: mrope-section must be three numbers, of {' or '.join(BY_AXIS)}")
    wanted = RopeReading(rotary_dim, longest, context_tokens, sections=sections, is_woven=kind == BY_AXIS[1])
    try:
        rope = read_rope(ConfigFields(values, file), wanted)
    except CompileError as error:
        raise BundleError(str(error)) from error
    if kind != PROPORTIONAL:
        return rope
    share = told.values.get("partial-rotary-factor")
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise BundleError(f"{CONFIG_FILE}: rope-scaling of type {PROPORTIONAL} needs a partial-rotary-factor up to 1")
    turning = int(rotary_dim * share) // 2
    frequencies = tuple(value if i < turning else 0.0 for i, value in enumerate(rope.inverse_frequencies))
    return msgspec.structs.replace(rope, inverse_frequencies=frequencies)


def _genie_scaling(position: Fields) -> dict[str, object]:
    """What rope-scaling says, in the keys of a Hugging Face config; {} for plain rotation."""
    scaling = position.group("rope-scaling")
    renamed = {new: scaling.values[old] for old, new in RENAMED.items() if scaling.has(old)}
    if renamed and not scaling.has("rope-type"):
        raise BundleError(f"{CONFIG_FILE}: rope-scaling has {', '.join(scaling.values)} but no rope-type")
    kind = scaling.text("rope-type", "default")
    if kind in (*PLAIN_KINDS, PROPORTIONAL):
        return {}
    if kind not in SCALED_KINDS:
        raise BundleError(f"{CONFIG_FILE}: rotary scaling {kind!r} is not supported")
    return {"rope_type": kind, **renamed}


def _model_scaling(model: Fields) -> dict[str, object]:
    """What config.json says; not the share of a head that turns, which the tensors tell, and not theta."""
    parameters = _model_parameters(model)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    told = RENAMED.values() if kind in (*SCALED_KINDS, "su") else parameters  # others have keys of their own
    numbers = {key: value for key, value in parameters.items() if key in told and key not in OF_TENSORS}
    return {} if kind in PLAIN_KINDS else {**numbers, "rope_type": "longrope" if kind == "su" else kind}


def _model_parameters(model: Fields) -> Mapping[str, object]:
    parameters = model.values.get("rope_parameters") or model.values.get("rope_scaling")
    return parameters if isinstance(parameters, Mapping) else {}


USUAL_LAYER_FILE = "embed_token_int16_lut.bin"
DATATYPES = {"float32": "float32", "ufixed8": "uint8", "ufixed16": "uint16"}
MOST_WIDTH = 1 << 24


def read_table(folder: Path, section: Fields, where: str, usual: str = EMBEDDING_FILE) -> TableSpec:
    """A table whose section says its file, width and type. BundleError names what is missing or wrong."""
    kind = section.text("type", "lut")
    if kind != "lut":
        raise BundleError(f"{CONFIG_FILE}: {where}.type must be 'lut', not {brief(kind)}: a callback cannot be called")
    name = Path(section.text("lut-path", usual).replace("\\", "/")).name
    if file_in(folder, name, f"{CONFIG_FILE}: {where}.lut-path") is None:
        raise BundleError(f"{folder} has no {name}, the table of what its graphs take in place of token ids")
    width = section.integer("size", 1, MOST_WIDTH, 0)
    if not width:
        raise BundleError(f"{CONFIG_FILE}: {where}.size must say how many numbers a token has in {name}")
    told = section.text("datatype", "float32")
    if told not in DATATYPES:
        raise BundleError(f"{CONFIG_FILE}: {where}.datatype must be {' or '.join(DATATYPES)}, not {brief(told)}")
    if told == "float32":
        return TableSpec(name, told, width)
    scale, offset = (section.group("quant-param").values.get(key) for key in ("scale", "offset"))
    if isinstance(scale, int | float) and 0 < scale <= 1e30 and isinstance(offset, int) and abs(offset) <= 65536:
        return TableSpec(name, DATATYPES[told], width, float(scale), -int(offset))
    raise BundleError(
        f"{CONFIG_FILE}: {where}.quant-param must have a scale above 0 and an integer offset, they are "
        f"{brief(scale)} and {brief(offset)}"
    )


def read_window(config: GenieConfig, model: Fields, variant: Variant) -> tuple[int, RopeSpec | None]:
    """How far back rows of window caches see, and the rotation of their layers; (0, None) where there are none. The
    window is what cache-groups or config.json tells. BundleError where neither does, or no rotation is told."""
    cos = next((slot for part in variant.body if (slot := part.input_of(Role.WINDOW_COS)) is not None), None)
    if cos is None:
        return 0, None
    window = config.window or model.integer("sliding_window", 1, MAX_TOKENS, 0)
    if not window:
        raise BundleError(f"{CONFIG_FILE}: cache-groups tells no window-size for tensor {cos.name}'s layers")
    if not config.local_position.has("rope-theta"):
        raise BundleError(f"{CONFIG_FILE}: no positional encoding of the layers that see a window (prefix swa_)")
    own = replace(config, position=config.local_position)
    return window, genie_rope(own, Fields({}, "config.json"), int(cos.spec.shape[-1]) * 2, variant.context)
