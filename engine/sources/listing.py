"""What a folder of models holds: bundles, checkpoints, folders for Genie and GGUF files right inside it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.bundle.manifest import MANIFEST_FILE, load_manifest
from engine.errors import BundleError
from engine.files.names import GGUF_SUFFIX
from engine.files.opening import is_regular, shown
from engine.genie.config import is_genie_folder


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model of a folder: its name, where it is, and whether it can be loaded without compiling."""

    name: str
    path: Path
    is_bundle: bool


def models_in(folder: Path) -> tuple[list[ListedModel], list[str]]:
    """The models in order of their file names, and a sentence for each bundle that cannot be served. BundleError."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise BundleError(f"models_dir {folder} cannot be read: {shown(error)}") from error
    found: list[ListedModel] = []
    problems: list[str] = []
    for path in paths:
        try:
            found += _model_at(path)
        except BundleError as error:
            problems.append(f"{path} is not served: {error}")
    return found, problems


def _model_at(path: Path) -> Iterator[ListedModel]:
    if is_regular(path / MANIFEST_FILE):
        if not _is_draft(path):
            yield ListedModel(load_manifest(path).name, path, is_bundle=True)
    elif path.suffix == GGUF_SUFFIX and is_regular(path):
        yield ListedModel(path.stem, path, is_bundle=False)
    elif is_genie_folder(path) or is_regular(path / "config.json"):
        yield ListedModel(path.name, path, is_bundle=False)


def _is_draft(path: Path) -> bool:
    """What a compiler that was broken off has left."""
    return ".partial-" in path.name or ".replaced-" in path.name
