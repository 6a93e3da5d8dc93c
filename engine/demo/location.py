"""Where the shipped demo model lies."""

from pathlib import Path


def demo_folder() -> Path:
    """Return the folder that holds the demo model's files."""
    return Path(__file__).resolve().parent / "model"
