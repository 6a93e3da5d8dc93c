"""The tensors of a GGUF file under the names of a checkpoint, some rows of them in memory at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader

import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.compile.checkpoint import Float32, finite
from engine.compile.gguf.architectures import ROPE_FACTORS, GgufArchitecture
from engine.compile.gguf.blocks import is_four_bit, kept_blocks
from engine.compile.gguf.config import GgufGeometry
from engine.compile.gguf.header import GgufHeader, StoredRows
from engine.compile.quantization.blocks import Blocks, Int4Blocks
from engine.errors import CompileError, UnsupportedModel
from engine.files.content import brief
from engine.files.opening import open_regular, shown

Bytes = NDArray[np.uint8]


@contextmanager
def gguf_tensors(header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry) -> Iterator["GgufTensors"]:
    """The tensors while the file is open."""
    try:
        stream = open_regular(header.path)
    except OSError as error:
        raise CompileError(f"{header.path} cannot be read: {shown(error)}") from error
    with stream:
        yield GgufTensors(stream, header, architecture, geometry)


class GgufTensors:
    """A `Checkpoint`. Reads from an open file; nothing is kept."""

    def __init__(
        self, stream: BufferedReader, header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry
    ) -> None:
        self._stream = stream
        self._title = header.path.name
        self._stored = _renamed(header, architecture, geometry.layers)
        self._interleaved = _interleaved(architecture, geometry.layers)
        self._head = geometry.head_dim
        self._used = {ROPE_FACTORS}

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def total_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(stored.bytes for stored in self._stored.values())

    def unused(self) -> list[str]:
        """Names of the tensors that nothing has asked for yet."""
        return sorted(set(self._stored) - self._used)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._find(name).shape

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor as stored."""
        return self._find(name).bytes

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """CompileError unless the tensor is there with this shape."""
        stored = self._find(name)
        if stored.shape != shape:
            raise CompileError(
                f"{self._title}: tensor {stored.name} has shape {stored.shape}, the metadata makes it {shape}"
            )
        self._used.add(name)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """A whole tensor as float32; CompileError when it is missing or has another shape."""
        self.require(name, shape)
        if len(shape) == 1:
            values = self._floats(name, self._read(name, 0, 1)).reshape(shape)
            return values[self._order(0, len(values))] if name in self._interleaved else values
        return self.rows(name, 0, shape[0]).reshape(shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        """Rows start..stop of a matrix as float32."""
        return self._floats(name, self._ordered(name, start, stop))

    def is_four_bit(self, name: str) -> bool:
        """Whether `blocks` of a matrix have 4 bits."""
        return is_four_bit(self._find(name).kind)

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """Rows start..stop as blocks of 32, None unless they lie in the file as such."""
        with np.errstate(all="ignore"):  # what is not finite is refused below
            blocks = kept_blocks(self._find(name).kind, self._ordered(name, start, stop))
        if blocks is not None:
            finite(name, blocks.scales)
            if isinstance(blocks, Int4Blocks) and blocks.offsets is not None:
                finite(name, blocks.offsets)
        return blocks

    def _find(self, name: str) -> StoredRows:
        if name not in self._stored:
            raise CompileError(f"{self._title} has no tensor {brief(name)}")
        return self._stored[name]

    def _read(self, name: str, start: int, stop: int) -> Bytes:
        """The stored bytes of rows [stop - start, row bytes]."""
        stored = self._find(name)
        if stop > stored.rows:
            raise CompileError(f"{self._title}: the rows of tensor {stored.name} are no whole heads")
        size = (stop - start) * stored.row_bytes
        try:
            self._stream.seek(stored.offset + start * stored.row_bytes, os.SEEK_SET)
            content = self._stream.read(size)
        except OSError as error:
            raise CompileError(f"{self._title} cannot be read: {shown(error)}") from error
        if len(content) != size:
            raise CompileError(f"{self._title} became shorter while it was read")
        return np.frombuffer(content, np.uint8).reshape(stop - start, stored.row_bytes)

    def _ordered(self, name: str, start: int, stop: int) -> Bytes:
        """Rows in the order of checkpoints: of an interleaved matrix whole heads are read."""
        if name not in self._interleaved:
            return self._read(name, start, stop)
        head = self._head
        first, last = start // head * head, -(-stop // head) * head
        return self._read(name, first, last)[self._order(start, stop) - first]

    def _order(self, start: int, stop: int) -> NDArray[np.int64]:
        """Where rows start..stop of the checkpoint lie: row h, half a, j was put at h, j, a."""
        head = self._head
        wanted = np.arange(start, stop)
        inside = wanted % head
        return wanted - inside + 2 * (inside % (head // 2)) + inside // (head // 2)

    def _floats(self, name: str, content: Bytes) -> Float32:
        kind = self._find(name).kind
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused below
                values = dequantize(content, kind)
        except NotImplementedError:
            raise UnsupportedModel(f"{self._title}: tensor type {kind.name} is not supported") from None
        return finite(name, values)


def _renamed(header: GgufHeader, architecture: GgufArchitecture, layers: int) -> dict[str, StoredRows]:
    """Tensors by their names in checkpoints; those that the table does not know keep theirs."""
    known = {
        theirs.format(layer=layer) + suffix: ours.format(layer=layer) + suffix
        for ours, theirs in architecture.modules.items()
        for layer in (range(layers) if "{layer}" in ours else range(1))
        for suffix in (".weight", ".bias")
    }
    return {known.get(name, name): stored for name, stored in header.tensors.items()}


def _interleaved(architecture: GgufArchitecture, layers: int) -> frozenset[str]:
    """Tensors whose rows the converter re-ordered."""
    return frozenset(
        module.format(layer=layer) + suffix
        for module in architecture.interleaved
        for layer in range(layers)
        for suffix in (".weight", ".bias")
    )
