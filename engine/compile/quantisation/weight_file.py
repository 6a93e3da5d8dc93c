"""The data file of one part: written once, front to back, hashed on the way; an NPU's in half precision."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.bundle.manifest import FileEntry
from engine.errors import CompileError

# Mapping needs page alignment (ONNX external data: 4096 bytes); small tensors only have to suit vector loads.
PAGE = 4096
LINE = 64
_MAPPED_FROM = 65_536


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where an initializer's bytes lie. `onnx_type` is a TensorProto data type, `dims` in elements."""

    name: str
    onnx_type: int
    dims: tuple[int, ...]
    file: str
    offset: int
    length: int

    def part(self, index: int, count: int) -> "StoredTensor":
        """One of `count` equal parts along the first axis, which divides by it; it lies in the same bytes."""
        dims, length = (self.dims[0] // count, *self.dims[1:]), self.length // count
        name, offset = f"{self.name}_{index + 1}_of_{count}", self.offset + index * length
        return replace(self, name=name, dims=dims, offset=offset, length=length)

    def pieces(self, lengths: Sequence[int]) -> list["StoredTensor"]:
        """The parts of these lengths along the first axis, which are all of it; they lie in the same bytes."""
        row, found, offset = self.length // self.dims[0], list[StoredTensor](), self.offset
        for index, count in enumerate(lengths, 1):
            name, dims = f"{self.name}_{index}_of_{len(lengths)}", (count, *self.dims[1:])
            found.append(StoredTensor(name, self.onnx_type, dims, self.file, offset, count * row))
            offset += count * row
        return found


class WeightFile:
    """Appends tensors to `folder/name`; afterwards `entry` is its size and sha256. dtype: of what flows through the
    graphs; for float16 float32 tensors are rounded to it, and CompileError names one that it cannot hold."""

    def __init__(self, folder: Path, name: str, dtype: str = "float32") -> None:
        self.name, self._is_half = name, dtype == "float16"
        self._stream = (folder / name).open("wb")
        self._digest = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *exit_info: object) -> None:
        self._stream.close()

    def add(self, name: str, array: NDArray[np.generic]) -> StoredTensor:
        """Append one array."""
        return self.add_chunks(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, [array])

    def add_chunks(
        self, name: str, onnx_type: int, dims: tuple[int, ...], chunks: Iterable[NDArray[np.generic]]
    ) -> StoredTensor:
        """Append one tensor that arrives in pieces along its first axis."""
        if self._is_half and onnx_type == onnx.TensorProto.FLOAT:
            onnx_type, chunks = onnx.TensorProto.FLOAT16, _halves(name, chunks)
        items = int(np.prod(dims, dtype=np.int64))
        self._write(memoryview(bytes(-self._size % (PAGE if items >= _MAPPED_FROM else LINE))))
        offset = self._size
        for chunk in chunks:
            self._write(np.ascontiguousarray(chunk).data)
        return StoredTensor(name, onnx_type, dims, self.name, offset, self._size - offset)

    @property
    def entry(self) -> FileEntry:
        """Size and sha256 of what was written."""
        return FileEntry(self._size, self._digest.hexdigest())

    def _write(self, data: memoryview) -> None:
        flat = data.cast("B") if data.nbytes else memoryview(b"")
        self._stream.write(flat)
        self._digest.update(flat)
        self._size += flat.nbytes


HALF_LIMIT = float(np.finfo(np.float16).max)


def _halves(name: str, chunks: Iterable[NDArray[np.generic]]) -> Iterator[NDArray[np.float16]]:
    for chunk in chunks:
        if chunk.size and max(float(chunk.max()), -float(chunk.min())) > HALF_LIMIT:
            raise CompileError(f"tensor {name} has values beyond {HALF_LIMIT:.0f}, which half precision cannot hold")
        yield chunk.astype(np.float16)


Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 2  # beside the one that reads items and writes results


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What `work` makes of each item, in order; at most `THREADS` + 1 results are waiting. Items are read here. Errors
    of `work` are raised where its result would come."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="ahead") as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
