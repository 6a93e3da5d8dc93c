"""hexserve.json of a Genie folder: what hexserve is told beside genie_config.json, whose keys are Genie's own."""

from dataclasses import dataclass
from pathlib import Path

from engine.errors import BundleError
from engine.files.content import brief
from engine.files.names import confined
from engine.files.opening import is_regular, shown
from engine.genie.json_fields import load_optional

EXTRAS_FILE = "hexserve.json"
CHAINED, APART = "chained", "apart"
KEYS = ("lm_head_weight", "parts")


@dataclass(frozen=True, slots=True)
class GenieExtras:
    """lm_head_weight: the file of the weights that an LM head takes as an input, None where it has its own.

    are_parts_apart: every part is run by itself, so that embeddings may come in between and caches are written while
    later parts run. Otherwise a pass is one run of the whole chain.
    """

    lm_head_weight: Path | None = None
    are_parts_apart: bool = False


def read_extras(folder: Path) -> GenieExtras:
    """Read the file; nothing is told where there is none. BundleError names the key."""
    fields = load_optional(folder / EXTRAS_FILE)
    unknown = next((key for key in fields.values if key not in KEYS), None)
    if unknown is not None:
        raise BundleError(f"{EXTRAS_FILE}: unknown key {brief(unknown)} (known: {', '.join(KEYS)})")
    parts = fields.text("parts", CHAINED)
    if parts not in (CHAINED, APART):
        raise BundleError(f"{EXTRAS_FILE}: parts must be '{CHAINED}' or '{APART}', not {brief(parts)}")
    name = fields.text("lm_head_weight", "")
    return GenieExtras(_file(folder, name) if name else None, parts == APART)


def _file(folder: Path, name: str) -> Path:
    try:
        path = confined(folder, name)
        if not is_regular(path):
            raise BundleError(f"{EXTRAS_FILE}: lm_head_weight: {folder} has no file {brief(name)}")
    except OSError as error:
        raise BundleError(f"{EXTRAS_FILE}: lm_head_weight: {shown(error)}") from error
    return path
