"""What a QNN context binary holds, as plain records that travel as JSON.

Other names for the graphs of a context binary, in place.

The provider names graphs by a hash; Genie wants `ar<rows>_cl<columns>_<part>_of_<parts>` as soon as there are several
parts. A name is stored as text without a checksum, so one of equal length can take its place (read back by QnnSystem
and run by the HTP emulator, QNN 2.51).
"""

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.manifest import TensorSpec
from engine.bundle.specs import Axis, Count, Name, Text
from engine.bundle.tensors import INTEGERS
from engine.errors import BundleError


class QnnEncoding(msgspec.Struct, frozen=True, omit_defaults=True):
    """real = scale * (q + offset), QNN's sign: offset = -zero_point. One entry, or one for each index along `axis`."""

    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    axis: int | None = None


class BinaryTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A graph input or output. dtype is numpy's name; data_format 0 is dense, anything else a private layout."""

    name: Name
    dtype: Name
    shape: Annotated[tuple[Axis, ...], Meta(max_length=8)]
    data_format: Count = 0
    encoding: QnnEncoding | None = None

    def spec(self) -> TensorSpec:
        """As a manifest has it; of several scales the first."""
        if self.encoding is None or self.dtype not in INTEGERS:
            return TensorSpec(self.name, self.dtype, self.shape)
        return TensorSpec(self.name, self.dtype, self.shape, self.encoding.scales[0], -self.encoding.offsets[0])


class BinaryGraph(msgspec.Struct, frozen=True):
    """One graph; tensors in the binary's own order, which differs between binaries."""

    name: Name
    inputs: tuple[BinaryTensor, ...]
    outputs: tuple[BinaryTensor, ...]


class BinaryInfo(msgspec.Struct, frozen=True):
    """One context binary. build_id: the QAIRT version that wrote it."""

    build_id: Text
    graphs: tuple[BinaryGraph, ...]


FILLER = "hexserve"


def padded(name: str, length: int) -> str:
    """A graph name with letters in front so that it has `length` characters. BundleError when it is too long."""
    room = length - len(name) - 1
    if room < 1:
        raise BundleError(f"graph name {name} does not fit into {length} characters")
    return f"{(FILLER * room)[:room]}_{name}"


def rename_graphs(path: Path, names: Mapping[str, str]) -> None:
    """Replace names, old to new, wherever they stand in a binary or a wrapper. BundleError when one is not there."""
    for old, new in names.items():
        if len(old.encode()) != len(new.encode()):
            raise BundleError(f"graph name {new} must be as long as {old}")
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
        for old, new in names.items():
            position = content.find(old.encode())
            if position < 0:
                raise BundleError(f"{path.name} has no graph named {old}")
            while position >= 0:
                content[position : position + len(old)] = new.encode()
                position = content.find(old.encode(), position)
