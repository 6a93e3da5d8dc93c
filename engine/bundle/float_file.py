"""A file of a bundle that holds one array of little-endian float32 and nothing else."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.errors import BundleError
from engine.files.names import confined
from engine.files.opening import read_bytes, shown

FLOAT_BYTES = 4


def check_floats(manifest: Manifest, name: str, shape: tuple[int, ...], purpose: str) -> None:
    """BundleError unless the file is listed with the size of the shape. purpose: who takes how much, for the error."""
    wanted = math.prod(shape) * FLOAT_BYTES
    if name not in manifest.files:
        raise BundleError(f"the manifest uses {name}, but does not list it among the bundle's files")
    if manifest.files[name].bytes != wanted:
        raise BundleError(f"{name} has {manifest.files[name].bytes} bytes, {purpose} {wanted}")


def read_floats(folder: Path, manifest: Manifest, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The array in a file that was checked with `check_floats`. BundleError when it cannot be read."""
    size = manifest.files[name].bytes
    try:
        content = read_bytes(confined(folder, name), size)
    except OSError as error:
        raise BundleError(f"{name} cannot be read: {shown(error)}") from error
    if len(content) != size:
        raise BundleError(f"{name} has {len(content)} bytes, its manifest says {size}")
    return np.frombuffer(content, "<f4").reshape(shape).astype(np.float32)
