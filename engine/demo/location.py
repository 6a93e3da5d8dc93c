"""Where the shipped demo models and their texts lie."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

# What stands for a shipped model where a path may stand.
DEMO, DIFFUSION, VISION = "demo", "demo-diffusion", "demo-vision"
# Written by `python -m tools.demo_model.texts`: samples of what they were trained on, and questions left out of that.
_HERE = Path(__file__).resolve().parent
CALIBRATION, HELD_OUT = (_HERE / "texts" / f"{name}.jsonl" for name in ("calibration", "held_out"))


def demo_folder() -> Path:
    return _HERE / "model"


def diffusion_folder() -> Path:
    return _HERE / "diffusion_model"


def vision_folder() -> Path:
    return _HERE / "vision_model"


SHIPPED: Mapping[str, Callable[[], Path]] = MappingProxyType(
    {DEMO: demo_folder, DIFFUSION: diffusion_folder, VISION: vision_folder}
)


def is_shipped(source: Path) -> bool:
    """Whether a checkpoint is one of the shipped ones."""
    return source.resolve() in [folder() for folder in SHIPPED.values()]


def shipped_texts(path: Path) -> Iterator[str]:
    """The documents of one of the two files, as the models are to see them."""
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            yield str(json.loads(line))
