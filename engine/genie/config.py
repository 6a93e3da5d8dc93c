"""genie_config.json and Genie's other JSON files, read field by field."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import BundleError
from engine.files import JSON_BYTES, brief, confined, is_regular, read_object, shown
from engine.models.config_fields import ConfigFields


class Fields(ConfigFields):
    """One JSON object of a Genie folder. A group that is absent is empty."""

    error = BundleError

    def group(self, key: str) -> "Fields":
        return super().group(key) or Fields({}, self._path, f"{self._inside}{key}.")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from low to high; the default may lie elsewhere."""
        return super().integer(key, low, high) if default is None or self.has(key) else default

    def integers(self, key: str) -> tuple[int, ...]:
        """An integer or a list of them, none negative; () when absent. -1, which means none, is left out."""
        value = self.values.get(key)
        every: list[object] = value if isinstance(value, list) else [] if value is None else [value]
        items = [item for item in every if isinstance(item, int) and not isinstance(item, bool) and item >= -1]
        if len(items) < len(every):
            raise self._refused(key, "an integer or a list of them", value)
        return tuple(item for item in items if item >= 0)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; () when absent."""
        value = [] if self.values.get(key) is None else self.values[key]
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise BundleError(f"{self.place(key)} must be a list of strings")
        return tuple(value)


def load_fields(path: Path, limit: int = JSON_BYTES) -> Fields:
    """The JSON object in a file; BundleError when it cannot be read or is not one."""
    return Fields(read_object(path, limit), path.name)


def load_optional(path: Path) -> Fields:
    """The same, empty when there is no such file."""
    return load_fields(path) if path.exists() else Fields({}, path.name)


def file_in(folder: Path, name: str, key: str) -> Path | None:
    """The regular file that a key names, None where there is none. BundleError where it would lie elsewhere."""
    try:
        path = confined(folder, name)
        return path if is_regular(path) else None
    except OSError as error:
        raise BundleError(f"{key}: {shown(error)}") from error


CONFIG_FILE = "genie_config.json"
MAX_TOKENS = 1 << 24
MAX_VOCAB = 1 << 24

TEXT_KEYS = ("dialog", "text-generator")  # the second in a pipeline's configuration, with the same content
SELF_SPECULATION = "ssd-q1"
SERVED_DIALOGS = ("basic", SELF_SPECULATION)
NO_BOS = -1
DEPRECATED_KV_MODES = ("SHIFT_CONCAT", "POINTER_SHIFT")
NOTHING = Fields({}, CONFIG_FILE, "dialog.")


@dataclass(frozen=True, slots=True)
class GenieConfig:
    """The relevant part."""

    binaries: tuple[str, ...]  # paths as written, in the order the parts run
    context_tokens: int  # 0 = not told
    vocabulary: int  # 0 = not told
    bos_id: int | None
    eos_ids: tuple[int, ...]
    tokenizer: str
    stop_sequences: tuple[str, ...]
    position: Fields  # dialog.engine.model.positional-encoding
    rope_theta: float  # from the back end's section, 0 = not there
    local_position: Fields = NOTHING  # of layers whose caches are windows
    window: int = 0  # 0 = not told
    layer_embedding: Fields = NOTHING  # dialog.perlayer-embedding
    forecast: Fields | None = None  # dialog.ssd-q1 of a dialog that speculates by itself
    embedding: Fields = NOTHING  # dialog.embedding


def is_genie_folder(folder: Path) -> bool:
    return is_regular(folder / CONFIG_FILE)


def read_config(folder: Path) -> GenieConfig:
    """Read genie_config.json; BundleError names the key that is wrong or not supported."""
    document = load_fields(folder / CONFIG_FILE)
    kind_of = next((key for key in TEXT_KEYS if document.has(key)), None)
    if kind_of is None:
        kinds = ", ".join(sorted(document.values)) or "an empty object"
        raise BundleError(f"{CONFIG_FILE} has no 'dialog': only text dialogs can be served, not {kinds}")
    dialog = document.group(kind_of)
    kind = dialog.text("type", "basic")
    if kind not in SERVED_DIALOGS:
        raise BundleError(f"{CONFIG_FILE}: dialogs of type {brief(kind)} are not supported (supported: basic, ssd-q1)")
    if isinstance(dialog.values.get("engine"), list):
        raise BundleError(f"{CONFIG_FILE}: dialog.engine is a list: several engines in one dialog are not supported")
    engine, context = dialog.group("engine"), dialog.group("context")
    _check_engine(engine)
    model = engine.group("model")
    position, local = _positions(model)
    bos = context.integer("bos-token", NO_BOS, MAX_VOCAB, NO_BOS)
    names = model.group("binary").texts("ctx-bins")
    if not names:
        raise BundleError(f"{CONFIG_FILE}: dialog.engine.model.binary.ctx-bins must name the context binaries")
    return GenieConfig(
        binaries=names,
        context_tokens=context.integer("size", 1, MAX_TOKENS, 0),
        vocabulary=context.integer("n-vocab", 1, MAX_VOCAB, 0),
        bos_id=None if bos == NO_BOS else bos,
        eos_ids=tuple(sorted({*context.integers("eos-token"), *context.integers("eot-token")})),
        tokenizer=dialog.group("tokenizer").text("path", "tokenizer.json"),
        stop_sequences=dialog.texts("stop-sequence"),
        position=position,
        local_position=local,
        window=_window(engine),
        layer_embedding=dialog.group("perlayer-embedding"),
        rope_theta=_theta(engine.group("backend").group("QnnHtp")),
        embedding=dialog.group("embedding"),
        forecast=dialog.group(SELF_SPECULATION) if kind == SELF_SPECULATION else None,
    )


WINDOW_PREFIX = "swa_"  # of the tensors of layers that see a window


def _positions(model: Fields) -> tuple[Fields, Fields]:
    """(of all layers, of those that see a window): GenieX has two keys, Genie from 2.48 on a list with prefixes."""
    told = model.values.get("positional-encoding")
    if not isinstance(told, list):
        return model.group("positional-encoding"), model.group("local-positional-encoding")
    each = [Fields(item, CONFIG_FILE, "positional-encoding.") for item in told if isinstance(item, Mapping)]
    local = [item for item in each if item.text("prefix", "") == WINDOW_PREFIX]
    others = [item for item in each if item not in local]
    if len(each) != len(told) or len(local) > 1 or len(others) != 1:
        raise BundleError(f"{CONFIG_FILE}: positional-encoding must have one entry, or two, one with prefix swa_")
    return others[0], local[0] if local else NOTHING


def _window(engine: Fields) -> int:
    """How far back rows of window caches see, as `cache-groups` tells it; 0 = it does not."""
    groups = engine.values.get("cache-groups")
    for item in groups if isinstance(groups, list) else ():
        group = Fields(item if isinstance(item, Mapping) else {}, CONFIG_FILE, "dialog.engine.cache-groups.")
        if group.text("prefix", "") == WINDOW_PREFIX:
            kind = group.group("longcontext").text("type", "sliding-window")
            if kind != "sliding-window":
                raise BundleError(f"{CONFIG_FILE}: cache-groups: longcontext {brief(kind)} is not supported")
            return group.group("longcontext").group("sliding-window").integer("window-size", 1, MAX_TOKENS, 0)
    return 0


def _check_engine(engine: Fields) -> None:
    back_end = engine.group("backend")
    kind = back_end.text("type", "QnnHtp")
    if kind != "QnnHtp":
        raise BundleError(f"{CONFIG_FILE}: the back end is {kind}; only QnnHtp bundles can be served")
    mode = back_end.group("QnnHtp").text("kv-update-method", "").upper().replace("-", "_")
    if mode in DEPRECATED_KV_MODES:
        raise BundleError(f"{CONFIG_FILE}: kv-update-method {mode} is deprecated and not supported; export it again")
    model = engine.group("model")
    if model.text("type", "binary") != "binary":
        raise BundleError(f"{CONFIG_FILE}: dialog.engine.model.type must be 'binary', not {model.text('type', '')!r}")
    if model.group("binary").has("lora"):
        raise BundleError(f"{CONFIG_FILE}: LoRA adapters (dialog.engine.model.binary.lora) are not supported")
    if engine.has("longcontext"):
        kind = engine.group("longcontext").text("type", "")
        raise BundleError(f"{CONFIG_FILE}: dialog.engine.longcontext ({kind}) evicts cached tokens; not supported")


def _theta(back_end: Fields) -> float:
    value = back_end.values.get("rope-theta")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1.0 <= value <= 1e12:
        raise BundleError(f"{CONFIG_FILE}: QnnHtp.rope-theta must be a number from 1 to 1e12, it is {brief(value)}")
    return float(value)
