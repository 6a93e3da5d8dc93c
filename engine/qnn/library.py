"""Where the QNN libraries lie: in a configured folder, else in the onnxruntime-qnn package. Imports nothing of it."""

import importlib.metadata
import importlib.util
import os
from pathlib import Path

from engine.errors import BundleError
from engine.qnn.environment import configured_folder, library_name

PACKAGE = "onnxruntime_qnn"
DISTRIBUTION = "onnxruntime-qnn"
MISSING = "this needs Qualcomm's runtime libraries: pip install 'hexserve[qnn]'"


def library_folder() -> Path:
    """The folder with the QNN libraries, the configured one or the package's; BundleError when there is none."""
    return configured_folder(os.environ) or package_folder()


def package_folder() -> Path:
    """The package's folder; BundleError when it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BundleError(MISSING)
    return Path(spec.origin).parent


def library_path(stem: str) -> Path:
    """Path of a library such as QnnSystem or Genie: what a configured folder lacks, the package has, or BundleError."""
    configured, name = configured_folder(os.environ), library_name(stem)
    if configured is not None and (configured / name).is_file():
        return configured / name
    folder = package_folder()
    found = sorted(folder.rglob(name))
    if not found:
        raise BundleError(f"{DISTRIBUTION} {package_version()} in {folder} has no {name}")
    return found[0]


def package_version() -> str:
    """Version of onnxruntime-qnn, '' when it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
