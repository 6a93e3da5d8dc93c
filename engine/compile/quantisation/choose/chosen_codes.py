"""Chosen codes on disk, as large models do not fit beside a layer in memory, and a checkpoint that has them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, Bytes, Float32, pack_nibbles, unpack_nibbles
from engine.compile.quantisation.rounding.codes import BlockCodes, BlockScales
from engine.compile.sources.checkpoint import Checkpoint, CheckpointView

Number = TypeVar("Number", np.uint8, np.float32)
CODES, SCALES, ZEROS = "codes", "scales", "zeros"


@dataclass(slots=True)
class _Layout:
    stem: str
    rows: int
    blocks: int
    block: int
    inputs: int
    zeros: str  # the type of the zeros, "" = there are none
    bits: int


class CodesFolder(Mapping[str, BlockCodes]):
    """Codes of matrices by the name of their tensor. A matrix is written in runs of rows, and read so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layouts: dict[str, _Layout] = {}
        self._count = 0

    def __getitem__(self, name: str) -> BlockCodes:
        return self.read(name, 0, self._layouts[name].rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __contains__(self, name: object) -> bool:
        return name in self._layouts

    def append(self, name: str, codes: BlockCodes) -> None:
        """Write further rows of a tensor. ValueError unless they have the form of those before them."""
        rows, blocks, block = codes.codes.shape
        zeros = "" if codes.grid.zeros is None else str(codes.grid.zeros.dtype)
        layout = _Layout("", 0, blocks, block, codes.inputs, zeros, codes.bits)
        if name not in self._layouts:
            self._layouts[name] = layout
            layout.stem = str(self._count)
            self._count += 1
        known = self._layouts[name]
        if replace(layout, stem=known.stem, rows=known.rows) != known:
            raise ValueError(f"rows of {name} have another form than those before them")
        packed = codes.codes if codes.bits == 8 else pack_nibbles(codes.codes)
        self._write(known.stem, CODES, packed.tobytes())
        self._write(known.stem, SCALES, codes.grid.scales.astype(np.float32, copy=False).tobytes())
        if codes.grid.zeros is not None:
            self._write(known.stem, ZEROS, codes.grid.zeros.tobytes())
        known.rows += rows

    def form(self, name: str) -> BlockForm:
        """Of a tensor's codes; KeyError when it has none here."""
        layout = self._layouts[name]
        return BlockForm(layout.bits, layout.block, layout.zeros == "uint8")

    def read(self, name: str, start: int, stop: int) -> BlockCodes:
        """Rows start..stop of a tensor; KeyError when it has no codes here."""
        layout = self._layouts[name]
        shape = (stop - start, layout.blocks)
        codes = self._read(layout.stem, CODES, start, (*shape, layout.block * layout.bits // 8), np.uint8)
        scales = self._read(layout.stem, SCALES, start, shape, np.float32)
        grid = BlockScales(scales, self._zeros(layout, start, shape), layout.block)
        return BlockCodes(codes if layout.bits == 8 else unpack_nibbles(codes), grid, layout.inputs, layout.bits)

    def _zeros(self, layout: _Layout, start: int, shape: tuple[int, int]) -> Bytes | Float32 | None:
        if not layout.zeros:
            return None
        if layout.zeros == "float32":
            return self._read(layout.stem, ZEROS, start, shape, np.float32)
        return self._read(layout.stem, ZEROS, start, shape, np.uint8)

    def _write(self, stem: str, kind: str, content: bytes) -> None:
        with (self._folder / f"{stem}.{kind}").open("ab") as stream:
            stream.write(content)

    def _read(self, stem: str, kind: str, start: int, shape: tuple[int, ...], dtype: type[Number]) -> NDArray[Number]:
        row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        path = self._folder / f"{stem}.{kind}"
        return np.fromfile(path, dtype, math.prod(shape), offset=start * row_bytes).reshape(shape)


class ChosenCheckpoint(CheckpointView):
    """As `inner`, floats included; `blocks` of a matrix in `codes` are those."""

    def __init__(self, inner: Checkpoint, codes: CodesFolder) -> None:
        super().__init__(inner)
        self._codes = codes

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """Rows start..stop in the chosen codes; of other matrices as they are stored."""
        if name in self._codes:
            return self._codes.read(name, start, stop).blocks()
        return self.inner.blocks(name, start, stop)

    def form(self, name: str) -> BlockForm | None:
        return self._codes.form(name) if name in self._codes else self.inner.form(name)
