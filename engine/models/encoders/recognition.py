"""Whether a checkpoint's folder is an encoder's, from its config.json alone."""

from collections.abc import Mapping
from pathlib import Path

from engine.files.content import read_json
from engine.files.opening import JSON_BYTES

ARCHITECTURES = (
    "BertModel",
    "BertForSequenceClassification",
    "RobertaModel",
    "RobertaForSequenceClassification",
    "XLMRobertaModel",
    "XLMRobertaForSequenceClassification",
    "NomicBertModel",
)


def is_encoder_folder(folder: Path) -> bool:
    """False for what is no folder of a checkpoint; what is wrong with one is told when it is read in earnest."""
    try:
        config = read_json(folder / "config.json", JSON_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and architecture_of(config) is not None


def architecture_of(config: Mapping[str, object]) -> str | None:
    """The first listed architecture that is an encoder's."""
    listed = config.get("architectures")
    names = listed if isinstance(listed, list) else []
    return next((name for name in names if isinstance(name, str) and name in ARCHITECTURES), None)
