"""Where the QNN libraries of the onnxruntime-qnn package lie. Imports nothing of it."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from engine.errors import BundleError

PACKAGE = "onnxruntime_qnn"
DISTRIBUTION = "onnxruntime-qnn"
MISSING = "this needs Qualcomm's runtime libraries: pip install 'hexserve[qnn]'"


def library_folder() -> Path:
    """The folder with the QNN libraries; BundleError when the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise BundleError(MISSING)
    return Path(spec.origin).parent


def library_path(stem: str) -> Path:
    """Path of a library such as QnnSystem or Genie; BundleError when the package lacks it."""
    folder, name = library_folder(), library_name(stem)
    found = sorted(folder.rglob(name))
    if not found:
        raise BundleError(f"{DISTRIBUTION} {package_version()} in {folder} has no {name}")
    return found[0]


def library_name(stem: str, platform: str = sys.platform) -> str:
    """QnnSystem -> libQnnSystem.so, or QnnSystem.dll on Windows."""
    return f"{stem}.dll" if platform == "win32" else f"lib{stem}.so"


def package_version() -> str:
    """Version of onnxruntime-qnn, '' when it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
