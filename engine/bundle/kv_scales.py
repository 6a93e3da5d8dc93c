"""The file of scales that int8 caches are rounded with: real = code * scale, one for each channel.

Legend: L = layers with keys and values, 2 = keys and values, K = KV heads, D = head size.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.float_file import check_floats, read_floats
from engine.bundle.manifest import Manifest, ModelSpec
from engine.errors import BundleError

KV_SCALES = "kv_scales.f32"
ROUNDED = "int8"  # the type of caches that have scales
LEAST, MOST = 1e-30, 1e30  # so that a scale and what it is divided into stay finite


def scales_shape(model: ModelSpec) -> tuple[int, int, int, int]:
    """[L, 2, K, D]."""
    return len(model.attention_layers), 2, model.kv_heads, model.head_dim


def check_kv_scales(manifest: Manifest) -> None:
    """BundleError unless int8 caches, and no others, have a listed file of the size that the model wants."""
    name, is_rounded = manifest.kv_scales, manifest.kv_dtype == ROUNDED
    if bool(name) != is_rounded:
        raise BundleError(f"caches of {manifest.kv_dtype} {'need' if is_rounded else 'have no'} kv_scales")
    if not is_rounded:
        return
    check_floats(manifest, name, scales_shape(manifest.model), "the model's cache scales take")


def read_kv_scales(folder: Path, manifest: Manifest) -> NDArray[np.float32]:
    """Scales [L, 2, K, D] of int8 caches. BundleError when the file is not what the model wants."""
    check_kv_scales(manifest)
    scales = read_floats(folder, manifest, manifest.kv_scales, scales_shape(manifest.model))
    wrong = scales[~((scales >= LEAST) & (scales <= MOST))]  # NaN is in no range
    if wrong.size:
        raise BundleError(f"{manifest.kv_scales} has a scale of {wrong[0]}; it must be from {LEAST} to {MOST}")
    return scales


def write_kv_scales(folder: Path, scales: NDArray[np.float32]) -> None:
    """Write scales [L, 2, K, D] into the folder."""
    (folder / KV_SCALES).write_bytes(scales.astype("<f4").tobytes())
