"""genie_config.json: what a server needs of it, and the dialogs it cannot serve.

Keys: Qualcomm's public Genie documentation (80-63442-10). Keys not named here are ignored.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.errors import BundleError
from engine.files.content import brief
from engine.files.opening import is_regular
from engine.genie.json_fields import Fields, load_fields

CONFIG_FILE = "genie_config.json"
MAX_TOKENS = 1 << 24
MAX_VOCAB = 1 << 24

SELF_SPECULATION = "ssd-q1"
SERVED_DIALOGS = ("basic", SELF_SPECULATION)
NO_BOS = -1
DEPRECATED_KV_MODES = ("SHIFT_CONCAT", "POINTER_SHIFT")


@dataclass(frozen=True, slots=True)
class GenieConfig:
    """The relevant part. context_tokens, vocabulary: 0 = not told. position: dialog.engine.model.positional-encoding.

    binaries: paths as written, in the order the parts run. rope_theta: from the back end's section, 0 = not there.
    forecast: dialog.ssd-q1 of a dialog that speculates by itself.
    """

    binaries: tuple[str, ...]
    context_tokens: int
    vocabulary: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    tokenizer: str
    stop_sequences: tuple[str, ...]
    position: Fields
    rope_theta: float
    forecast: Fields | None = None


def is_genie_folder(folder: Path) -> bool:
    """Whether a folder is laid out for Genie."""
    return is_regular(folder / CONFIG_FILE)


def read_config(folder: Path) -> GenieConfig:
    """Read genie_config.json; BundleError names the key that is wrong or not supported."""
    document = load_fields(folder / CONFIG_FILE)
    if not document.has("dialog"):
        raise BundleError(f"{CONFIG_FILE} has no 'dialog': only text dialogs can be served, not {_kinds(document)}")
    dialog = document.group("dialog")
    kind = dialog.text("type", "basic")
    if kind not in SERVED_DIALOGS:
        raise BundleError(f"{CONFIG_FILE}: dialogs of type {brief(kind)} are not supported (supported: basic, ssd-q1)")
    if isinstance(dialog.values.get("engine"), list):
        raise BundleError(f"{CONFIG_FILE}: dialog.engine is a list: several engines in one dialog are not supported")
    engine, context = dialog.group("engine"), dialog.group("context")
    _check_engine(engine)
    model = engine.group("model")
    back_end = engine.group("backend").group("QnnHtp")
    bos = context.integer("bos-token", NO_BOS, MAX_VOCAB, NO_BOS)
    return GenieConfig(
        binaries=_binaries(model),
        context_tokens=context.integer("size", 1, MAX_TOKENS, 0),
        vocabulary=context.integer("n-vocab", 1, MAX_VOCAB, 0),
        bos_id=None if bos == NO_BOS else bos,
        eos_ids=tuple(sorted({*context.integers("eos-token"), *context.integers("eot-token")})),
        tokenizer=dialog.group("tokenizer").text("path", "tokenizer.json"),
        stop_sequences=dialog.texts("stop-sequence"),
        position=model.group("positional-encoding"),
        rope_theta=_theta(back_end),
        forecast=dialog.group(SELF_SPECULATION) if kind == SELF_SPECULATION else None,
    )


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


def _binaries(model: Fields) -> tuple[str, ...]:
    names = model.group("binary").texts("ctx-bins")
    if not names:
        raise BundleError(f"{CONFIG_FILE}: dialog.engine.model.binary.ctx-bins must name the context binaries")
    return names


def _theta(back_end: Fields) -> float:
    value = back_end.values.get("rope-theta")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1.0 <= value <= 1e12:
        raise BundleError(f"{CONFIG_FILE}: QnnHtp.rope-theta must be a number from 1 to 1e12, it is {brief(value)}")
    return float(value)


def _kinds(document: Fields) -> str:
    return ", ".join(sorted(document.values)) or "an empty object"
