"""What each real model is made of: packages of the Python package index with pinned versions and hashes."""

from pathlib import Path

import msgspec

from engine.sources.packaged import PackagedModel, catalogue

PINS = Path(__file__).parent / "packages.toml"


def pinned() -> dict[str, PackagedModel]:
    """Every model by its name: the catalogue's, and those that only tests and measurements read."""
    shipped = {name: entry.package for name, entry in catalogue().items() if entry.package is not None}
    return shipped | msgspec.toml.decode(PINS.read_bytes(), type=dict[str, PackagedModel])
