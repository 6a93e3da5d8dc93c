"""The columns that forecast rows see first: Genie's file of cached keys and values, with a header of 16 bytes."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.forecast import ForecastSpec
from engine.bundle.manifest import ITEM_BYTES, ModelSpec
from engine.errors import BundleError
from engine.files.opening import read_bytes, shown

MAGIC = 0xC0DE
_HEADER = struct.Struct("<IIBxHHH")  # tensors, magic, type, heads, head size, columns


@dataclass(frozen=True, slots=True)
class ForecastPrefix:
    """keys [L, K, 1, D, columns] and values [L, K, 1, columns, D], as caches have them."""

    keys: NDArray[np.generic]
    values: NDArray[np.generic]

    @property
    def columns(self) -> int:
        """How many columns they take."""
        return int(self.keys.shape[-1])


def read_forecast_prefix(folder: Path, spec: ForecastSpec, model: ModelSpec, kv_dtype: str) -> ForecastPrefix:
    """BundleError names the file, and what of it is not the model's."""
    path, item = folder / spec.file, ITEM_BYTES[kv_dtype]
    numbers = model.layers * model.kv_heads * model.head_dim * spec.columns
    size = _HEADER.size + 2 * numbers * item
    try:
        content = read_bytes(path, size)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {shown(error)}") from error
    if len(content) < size:
        raise BundleError(f"{path} has {len(content)} bytes; {spec.columns} columns of this model's caches take {size}")
    tensors, magic, _, heads, head_dim, columns = _HEADER.unpack_from(content)
    found = {"magic": magic, "tensors": tensors, "heads": heads, "head size": head_dim, "columns": columns}
    wanted = (MAGIC, 2 * model.layers, model.kv_heads, model.head_dim, spec.columns)
    for (name, value), right in zip(found.items(), wanted, strict=True):
        if value != right:
            raise BundleError(f"{path} says {value:#x} as its {name}, it must be {right:#x}")
    lead = (model.layers, model.kv_heads, 1)
    both = np.frombuffer(content, np.dtype(kv_dtype).newbyteorder("<"), offset=_HEADER.size).reshape(2, -1)
    keys = both[0].reshape(*lead, model.head_dim, spec.columns)
    return ForecastPrefix(keys, both[1].reshape(*lead, spec.columns, model.head_dim))
