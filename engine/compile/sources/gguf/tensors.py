"""The tensors of a GGUF file under the names of a checkpoint, some rows of them in memory at a time."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.sources.checkpoint import Checkpoint, Float32, finite
from engine.compile.sources.gguf.architectures import DRAFTING, LONG_FACTORS, ROPE_FACTORS, GgufArchitecture
from engine.compile.sources.gguf.arrangement import (
    AS_STORED,
    BLOCK,
    Arrangement,
    arrangements,
    block_bits,
    kept_blocks,
    reordered,
)
from engine.compile.sources.gguf.geometry import GgufGeometry
from engine.compile.sources.gguf.header import GgufHeader, StoredRows
from engine.compile.sources.gguf.latents import SplitLatents
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief, open_regular, shown

Bytes = NDArray[np.uint8]


@contextmanager
def gguf_tensors(header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry) -> Iterator[Checkpoint]:
    """The tensors while the files are open."""
    with ExitStack() as opened:
        streams = {path: opened.enter_context(_opened(path)) for path in _paths(header)}
        found = GgufTensors(streams, header, architecture, geometry)
        yield SplitLatents(found) if architecture.has_latents else found


def _paths(header: GgufHeader) -> set[Path]:
    return {stored.path for stored in header.tensors.values()}


def _opened(path: Path) -> BufferedReader:
    try:
        return open_regular(path)
    except OSError as error:
        raise CompileError(f"{path} cannot be read: {shown(error)}") from error


class GgufTensors:
    """A `Checkpoint`. Reads from open files; nothing is kept."""

    def __init__(
        self,
        streams: Mapping[Path, BufferedReader],
        header: GgufHeader,
        architecture: GgufArchitecture,
        geometry: GgufGeometry,
    ) -> None:
        self._streams = streams
        self._title = header.path.name
        self._arranged = arrangements(architecture, geometry)
        self._stored = {
            name: _as_arranged(stored, self._arrangement(name))
            for name, stored in _renamed(header, architecture, geometry).items()
        }
        self._used = {ROPE_FACTORS, *LONG_FACTORS.values()}

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
            return self._vector(name, shape[0])
        return self.rows(name, 0, shape[0]).reshape(shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        """Rows start..stop of a matrix as float32; of stacked matrices all rows of those."""
        values = self._floats(name, self._ordered(name, *self._runs(name, start, stop)))
        columns = self._arrangement(name).columns
        return values if columns is None else values[:, columns.places(np.arange(values.shape[1]))]

    def form(self, name: str) -> BlockForm | None:
        """What `blocks` of a matrix have in common."""
        bits = block_bits(self._find(name).kind)
        return BlockForm(bits) if bits and not self._has_mixed_blocks(name) else None

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """As `rows`, as blocks of 32, None unless they lie in the file as such."""
        columns = self._arrangement(name).columns
        order = None if columns is None else columns.of_blocks(BLOCK)
        if self._has_mixed_blocks(name):
            return None
        with np.errstate(all="ignore"):  # what is not finite is refused below
            blocks = kept_blocks(self._find(name).kind, self._ordered(name, *self._runs(name, start, stop)))
        if blocks is None:
            return None
        finite(name, blocks.scales)
        if blocks.offsets is not None:
            finite(name, blocks.offsets)
        return blocks if order is None else reordered(blocks, order.places(np.arange(blocks.scales.shape[1])))

    def _runs(self, name: str, start: int, stop: int) -> tuple[int, int]:
        """Runs of the last axis that so many of the first hold."""
        each = math.prod(self.shape(name)[1:-1])
        return start * each, stop * each

    def _arrangement(self, name: str) -> Arrangement:
        return self._arranged.get(name, AS_STORED)

    def _has_mixed_blocks(self, name: str) -> bool:
        """Whether the order of columns takes blocks apart."""
        columns = self._arrangement(name).columns
        return columns is not None and columns.of_blocks(BLOCK) is None

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
            stream = self._streams[stored.path]
            stream.seek(stored.offset + start * stored.row_bytes, os.SEEK_SET)
            content = stream.read(size)
        except OSError as error:
            raise CompileError(f"{self._title} cannot be read: {shown(error)}") from error
        if len(content) != size:
            raise CompileError(f"{self._title} became shorter while it was read")
        return np.frombuffer(content, np.uint8).reshape(stop - start, stored.row_bytes)

    def _vector(self, name: str, size: int) -> Float32:
        """A tensor of one axis."""
        values = self._floats(name, self._read(name, 0, 1)).reshape(size)
        arrangement = self._arrangement(name)
        if arrangement.rows is not None:
            values = values[arrangement.rows.places(np.arange(size))]
        if arrangement.restore is not None:
            values = arrangement.restore(f"{self._title}: tensor {self._find(name).name}", values)
        return values

    def _ordered(self, name: str, start: int, stop: int) -> Bytes:
        """Rows in the order of checkpoints, read in runs of those that lie side by side."""
        order = self._arrangement(name).rows
        if order is None:
            return self._read(name, start, stop)
        places = order.places(np.arange(start, stop))
        ranks = np.argsort(places)
        ascending = places[ranks]
        runs = np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1)
        content = np.concatenate([self._read(name, int(run[0]), int(run[-1]) + 1) for run in runs])
        ordered = np.empty_like(content)
        ordered[ranks] = content
        return ordered

    def _floats(self, name: str, content: Bytes) -> Float32:
        kind = self._find(name).kind
        try:
            with np.errstate(all="ignore"):  # what is not finite is refused below
                values = dequantize(content, kind)
        except NotImplementedError:
            raise UnsupportedModel(f"{self._title}: tensor type {kind.name} is not supported") from None
        return finite(name, values)


def _renamed(header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry) -> dict[str, StoredRows]:
    """Tensors by their names in checkpoints; those that the table does not know keep theirs."""
    names = {
        theirs + suffix: ours + suffix
        for ours, theirs in architecture.modules.items()
        for suffix in (".weight", ".bias")
    }
    names |= {theirs: ours for ours, theirs in architecture.tensors.items()}
    known = {
        theirs.format(layer=layer): ours.format(layer=layer)
        for theirs, ours in names.items()
        for layer in (range(geometry.layers) if "{layer}" in ours else range(1))
    }
    drafting = tuple(f"blk.{geometry.layers + layer}." for layer in range(geometry.drafting))
    known |= {name: f"{DRAFTING}{name}" for name in header.tensors if name.startswith(drafting)}
    return {known.get(name, name): stored for name, stored in header.tensors.items()}


def _as_arranged(stored: StoredRows, arrangement: Arrangement) -> StoredRows:
    """[channels, kernel] as [channels, 1, kernel], or all numbers as a vector."""
    if arrangement.is_vector:
        return replace(stored, shape=(math.prod(stored.shape),), row_bytes=stored.bytes)
    is_flat = arrangement.is_flat and len(stored.shape) == 2
    return replace(stored, shape=(stored.shape[0], 1, stored.shape[1])) if is_flat else stored
