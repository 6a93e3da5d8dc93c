"""Chosen codes on disk, as large models' do not fit beside a layer in memory."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantization.blocks import pack_nibbles, unpack_nibbles
from engine.compile.rounding.codes import BlockCodes, BlockScales

Number = TypeVar("Number", np.uint8, np.float32)
CODES, SCALES, ZEROS = "codes", "scales", "zeros"


@dataclass(slots=True)
class _Layout:
    stem: str
    rows: int
    blocks: int
    block: int
    inputs: int
    has_zeros: bool


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
        layout = _Layout("", 0, blocks, block, codes.inputs, codes.grid.zeros is not None)
        if name not in self._layouts:
            self._layouts[name] = layout
            layout.stem = str(self._count)
            self._count += 1
        known = self._layouts[name]
        if (known.blocks, known.block, known.has_zeros) != (layout.blocks, layout.block, layout.has_zeros):
            raise ValueError(f"rows of {name} have another form than those before them")
        self._write(known.stem, CODES, pack_nibbles(codes.codes).tobytes())
        self._write(known.stem, SCALES, codes.grid.scales.astype(np.float32, copy=False).tobytes())
        if codes.grid.zeros is not None:
            self._write(known.stem, ZEROS, codes.grid.zeros.tobytes())
        known.rows += rows

    def replace(self, name: str, codes: BlockCodes) -> None:
        """Write a whole tensor anew."""
        layout = self._layouts.pop(name)
        for path in self._folder.glob(f"{layout.stem}.*"):
            path.unlink()
        self.append(name, codes)

    def read(self, name: str, start: int, stop: int) -> BlockCodes:
        """Rows start..stop of a tensor; KeyError when it has no codes here."""
        layout = self._layouts[name]
        shape = (stop - start, layout.blocks)
        codes = self._read(layout.stem, CODES, start, (*shape, layout.block // 2), np.uint8)
        scales = self._read(layout.stem, SCALES, start, shape, np.float32)
        zeros = self._read(layout.stem, ZEROS, start, shape, np.uint8) if layout.has_zeros else None
        return BlockCodes(unpack_nibbles(codes), BlockScales(scales, zeros, layout.block), layout.inputs)

    def _write(self, stem: str, kind: str, content: bytes) -> None:
        with (self._folder / f"{stem}.{kind}").open("ab") as stream:
            stream.write(content)

    def _read(self, stem: str, kind: str, start: int, shape: tuple[int, ...], dtype: type[Number]) -> NDArray[Number]:
        row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        path = self._folder / f"{stem}.{kind}"
        return np.fromfile(path, dtype, math.prod(shape), offset=start * row_bytes).reshape(shape)
