"""What a QNN context binary holds, as plain records that travel as JSON."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Axis, Count, Name, Text


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


class BinaryGraph(msgspec.Struct, frozen=True):
    """One graph; tensors in the binary's own order, which differs between binaries."""

    name: Name
    inputs: tuple[BinaryTensor, ...]
    outputs: tuple[BinaryTensor, ...]


class BinaryInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One context binary. build_id: the QAIRT version that wrote it, core_api: the QNN interface it needs.

    library: the version of the QnnSystem library that read it.
    """

    build_id: Text
    core_api: tuple[int, int, int]
    backend_id: int
    soc: Text
    graphs: tuple[BinaryGraph, ...]
    library: str = ""
