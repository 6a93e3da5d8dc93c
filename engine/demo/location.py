"""Where the shipped demo models lie."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

# What stands for a shipped model where a path may stand.
DEMO = "demo"
DIFFUSION = "demo-diffusion"


def demo_folder() -> Path:
    """Return the folder that holds the demo model's files."""
    return Path(__file__).resolve().parent / "model"


def diffusion_folder() -> Path:
    """Return the folder of the same model continued as a block-diffusion model."""
    return Path(__file__).resolve().parent / "diffusion_model"


SHIPPED: Mapping[str, Callable[[], Path]] = MappingProxyType({DEMO: demo_folder, DIFFUSION: diffusion_folder})
