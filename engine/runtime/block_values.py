"""Keys and values of a block as the checkpoint has them, out of the bytes that a runtime stores and back.
Bundles of one model store the same numbers in other types, orders and bases; in these terms they are alike.
Legend: L = layers, K = KV heads, D = head size, n = tokens of a block."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.tensors import encoding_of, place_of
from engine.bundle.weight_files import ROUNDED, read_head_basis, read_kv_scales
from engine.errors import BundleError

Float32 = NDArray[np.float32]
Float16 = NDArray[np.float16]


class BlockValues:
    """Of one bundle. BundleError for one whose sequences are more than keys and values of every token."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        if (reason := why_not(manifest)) is not None:
            raise BundleError(f"{manifest.name} {reason}: it cannot share sequences with another device")
        model = manifest.model
        self._dtype = np.dtype(manifest.kv_dtype)
        self._is_pool = not manifest.is_segmented
        self._lead = (len(model.attention_layers), model.kv_heads)
        self._head_dim = model.head_dim
        self._scales, self._zeros = _codes(folder, manifest)
        self._basis = read_head_basis(folder, manifest)  # [L, K, 1 + D, D]: factors of keys, then of values
        if self._basis is not None:
            turned = np.swapaxes(self._basis[:, :, 1:], 2, 3)
            self._turned = np.ascontiguousarray(turned)  # what values are multiplied with, and its inverse
            self._back = np.linalg.inv(turned.astype(np.float64)).astype(np.float32)
        self._limits = np.iinfo(self._dtype) if self._dtype.kind in "iu" else None

    def read(self, content: bytes) -> Float32 | Float16:
        """[2, L, K, n, D], keys first, of what `Runtime.offloaded` gives, of a type that loses nothing that counts."""
        keys, values = np.frombuffer(content, self._dtype).reshape(2, -1)
        if self._is_pool:
            pair = np.stack([keys.reshape(*self._lead, self._head_dim, -1).swapaxes(2, 3), self._whole(values)])
        else:
            pair = np.stack([self._whole(keys), self._whole(values)])
        real = pair.astype(np.float32)
        if self._limits is not None:
            real = (real - self._zeros) * self._scales
        if self._basis is not None:
            real[0] /= self._basis[:, :, :1]
            real[1] = real[1] @ self._back
        return real if self._dtype == np.float32 else _half(real)

    def write(self, pair: Float32) -> bytes:
        """The bytes for `Runtime.put_offloaded` of [2, L, K, n, D]; codes are rounded to the nearest."""
        real = np.array(pair, np.float32)
        if self._basis is not None:
            real[0] *= self._basis[:, :, :1]
            real[1] = real[1] @ self._turned
        if self._limits is not None:
            real = np.clip(np.rint(real / self._scales + self._zeros), self._limits.min, self._limits.max)
        keys, values = _half(real) if self._dtype == np.float16 else real.astype(self._dtype)
        if self._is_pool:
            keys = np.ascontiguousarray(keys.swapaxes(2, 3))
        return bytes(keys.tobytes() + values.tobytes())

    def _whole(self, flat: NDArray[np.generic]) -> NDArray[np.generic]:
        return flat.reshape(*self._lead, -1, self._head_dim)


def _half(real: Float32) -> Float16:
    """What is beyond its range is its largest."""
    most = np.finfo(np.float16).max
    return real.clip(-most, most).astype(np.float16)


def why_not(manifest: Manifest) -> str | None:
    """What stands in the way of telling a bundle's caches in other terms; None for nothing."""
    if not manifest.generates or manifest.diffusion is not None:
        return "does not write one token after the other"
    if manifest.is_serial or manifest.fused is not None or manifest.reads_whole_context:
        return "has graphs that keep caches of their own"
    if manifest.model.recurrent is not None or manifest.forecast is not None:
        return "carries more than keys and values"
    if len(manifest.model.cache_groups) != 1 or manifest.window or manifest.model.sight:
        return "has layers with windows"
    return None


def _codes(folder: Path, manifest: Manifest) -> tuple[Float32, Float32]:
    """Scales and zero points of integers, [2, L, K, 1, D or 1]; ones and zeros for floats."""
    model = manifest.model
    shape = (2, len(model.attention_layers), model.kv_heads, 1, 1)
    scales, zeros = np.ones(shape, np.float32), np.zeros(shape, np.float32)
    if manifest.is_segmented and manifest.kv_dtype == ROUNDED:
        scales = read_kv_scales(folder, manifest).swapaxes(0, 1)[:, :, :, None, :]
    for tensor in [] if manifest.is_segmented else [each for graph in manifest.graphs for each in graph.inputs]:
        if (place := place_of(tensor.name, "_in")) is not None:
            place.of(*scales)[...] = encoding_of(tensor).scale
            place.of(*zeros)[...] = encoding_of(tensor).zero_point
    return scales, zeros
