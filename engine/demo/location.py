"""Where the shipped demo model lies."""

from pathlib import Path

DEMO = "demo"  # what stands for it where a path may stand


def demo_folder() -> Path:
    """Return the folder that holds the demo model's files."""
    return Path(__file__).resolve().parent / "model"
