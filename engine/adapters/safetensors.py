"""Tensors of a safetensors file, each read within the bounds that its reader expects; needs numpy only."""

import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import BundleError
from engine.files.content import brief, one_line
from engine.files.opening import open_regular, shown

HEADER_BYTES = 16 << 20
_LENGTH_BYTES = 8
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
Floats = NDArray[np.float32]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorFile:
    """An open file; its tensors by name. Use as a context manager."""

    path: Path
    stream: BufferedReader
    entries: dict[str, _Entry]
    first_byte: int
    size: int

    @classmethod
    def open(cls, path: Path) -> "TensorFile":
        """BundleError names the file and what is wrong with its header."""
        try:
            stream = open_regular(path)
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {shown(error)}") from error
        try:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= min(HEADER_BYTES, size - _LENGTH_BYTES):
                raise BundleError(f"{path} is no safetensors file: its header would have {length} of {size} bytes")
            return cls(path, stream, _header(path, stream.read(length)), _LENGTH_BYTES + length, size)
        except BaseException:
            stream.close()
            raise

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *exit_info: object) -> None:
        self.stream.close()

    def read(self, name: str, shape: tuple[int, ...]) -> Floats:
        """A tensor that must have this shape, as float32. BundleError names the tensor and its shape."""
        entry = self.entries[name]
        if entry.shape != shape:
            raise BundleError(f"{self.path}: tensor {brief(name)} has shape {list(entry.shape)[:8]}, not {list(shape)}")
        if entry.dtype not in _ITEM_BYTES:
            known = ", ".join(_ITEM_BYTES)
            raise BundleError(f"{self.path}: tensor {brief(name)} has type {brief(entry.dtype)}; supported are {known}")
        start, end = entry.data_offsets
        wanted = int(np.prod(shape, dtype=np.int64)) * _ITEM_BYTES[entry.dtype]
        if start < 0 or end - start != wanted or self.first_byte + end > self.size:
            raise BundleError(
                f"{self.path}: tensor {brief(name)} of {wanted} bytes lies at {start} to {end} of "
                f"{self.size - self.first_byte} bytes"
            )
        self.stream.seek(self.first_byte + start)
        data = self.stream.read(wanted)
        if len(data) < wanted:
            raise BundleError(f"{self.path} has become shorter while it was read")
        values = _as_floats(data, entry.dtype).reshape(shape)
        if not np.isfinite(values).all():
            raise BundleError(f"{self.path}: tensor {brief(name)} holds numbers that are not finite")
        return values


def _header(path: Path, body: bytes) -> dict[str, _Entry]:
    try:
        table = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        table.pop("__metadata__", None)
        return {name: msgspec.json.decode(raw, type=_Entry) for name, raw in table.items()}
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BundleError(f"{path} is no safetensors file: {one_line(error)}") from error


def _as_floats(data: bytes, dtype: str) -> Floats:
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, "<f4" if dtype == "F32" else "<f2").astype(np.float32)
