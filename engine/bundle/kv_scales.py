"""The file of scales that int8 caches are rounded with: real = code * scale, one for each channel.

Legend: L = layers, 2 = keys and values, K = KV heads, D = head size.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest, ModelSpec
from engine.errors import BundleError
from engine.files.names import confined
from engine.files.opening import read_bytes, shown

KV_SCALES = "kv_scales.f32"
ROUNDED = "int8"  # the type of caches that have scales
LEAST, MOST = 1e-30, 1e30  # so that a scale and what it is divided into stay finite
FLOAT_BYTES = 4


def scales_shape(model: ModelSpec) -> tuple[int, int, int, int]:
    """[L, 2, K, D]."""
    return model.layers, 2, model.kv_heads, model.head_dim


def check_kv_scales(manifest: Manifest) -> None:
    """BundleError unless int8 caches, and no others, have a listed file of the size that the model wants."""
    name, is_rounded = manifest.kv_scales, manifest.kv_dtype == ROUNDED
    if bool(name) != is_rounded:
        raise BundleError(f"caches of {manifest.kv_dtype} {'need' if is_rounded else 'have no'} kv_scales")
    if not is_rounded:
        return
    layers, sides, heads, channels = scales_shape(manifest.model)
    wanted = layers * sides * heads * channels * FLOAT_BYTES
    if name not in manifest.files:
        raise BundleError(f"the manifest uses {name}, but does not list it among the bundle's files")
    if manifest.files[name].bytes != wanted:
        raise BundleError(f"{name} has {manifest.files[name].bytes} bytes, the model's cache scales take {wanted}")


def read_kv_scales(folder: Path, manifest: Manifest) -> NDArray[np.float32]:
    """Scales [L, 2, K, D] of int8 caches. BundleError when the file is not what the model wants."""
    check_kv_scales(manifest)
    size = manifest.files[manifest.kv_scales].bytes
    try:
        content = read_bytes(confined(folder, manifest.kv_scales), size)
    except OSError as error:
        raise BundleError(f"{manifest.kv_scales} cannot be read: {shown(error)}") from error
    if len(content) != size:
        raise BundleError(f"{manifest.kv_scales} has {len(content)} bytes, its manifest says {size}")
    scales = np.frombuffer(content, "<f4").reshape(scales_shape(manifest.model))
    wrong = scales[~((scales >= LEAST) & (scales <= MOST))]  # NaN is in no range
    if wrong.size:
        raise BundleError(f"{manifest.kv_scales} has a scale of {wrong[0]}; it must be from {LEAST} to {MOST}")
    return scales.astype(np.float32)


def write_kv_scales(folder: Path, scales: NDArray[np.float32]) -> None:
    """Write scales [L, 2, K, D] into the folder."""
    (folder / KV_SCALES).write_bytes(scales.astype("<f4").tobytes())
