"""The wide storage of a 4-bit model: int8 rows made from the stored 4-bit codes, so that both are one model.

Passes of few rows wait for memory and read the 4-bit form; from some rows on the product itself costs more, and
8-bit integers need no unpacking.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.packed import PackedLayer, PackedLinear, PackedPart
from engine.compile.quantization.int4 import Int4Blocks, dequantised
from engine.compile.quantization.method import Float32, FloatMatrix, StoredMatrix
from engine.compile.quantization.table import METHODS
from engine.compile.weight_file import StoredTensor, WeightFile

Number = TypeVar("Number", np.uint8, np.float32)
_SLICE_ITEMS = 1 << 20  # numbers worked on at once: small enough for the caches


class WideWriter:
    """Copies 4-bit matrices of `folder` into `file` as int8; `on_write` is told the bytes of each."""

    def __init__(
        self, folder: Path, file: WeightFile, arguments: CompileArguments, on_write: Callable[[int], None]
    ) -> None:
        self._folder = folder
        self._file = file
        self._arguments = arguments
        self._on_write = on_write

    def pack(self, narrow: PackedPart) -> PackedPart:
        """The same part with its 4-bit matrices in the wide storage; all else is shared."""
        layers = tuple(self._layer(layer, index) for index, layer in enumerate(narrow.layers))
        head = narrow.head and self._linear(narrow.head, "head")
        return replace(narrow, layers=layers, head=head)

    def _layer(self, layer: PackedLayer, index: int) -> PackedLayer:
        at = f"layer_{index}"
        return replace(
            layer,
            qkv=self._linear(layer.qkv, f"{at}_qkv"),
            output=self._linear(layer.output, f"{at}_output"),
            gate_up=self._linear(layer.gate_up, f"{at}_gate_up"),
            down=self._linear(layer.down, f"{at}_down"),
        )

    def _linear(self, linear: PackedLinear, name: str) -> PackedLinear:
        if linear.quant is not Quant.INT4:
            return linear
        matrix = linear.matrix
        slices = dequantised_slices(self._folder, matrix)
        floats = FloatMatrix(name, matrix.outputs, matrix.inputs, slices)
        stored = METHODS[Quant.INT8].store(self._file, floats, self._arguments)
        self._on_write(stored.weight.length)
        return PackedLinear(Quant.INT8, stored, linear.bias)


def dequantised_slices(folder: Path, matrix: StoredMatrix) -> Iterator[Float32]:
    """Runs of rows [some, inputs] of a stored 4-bit matrix, as the floats that its codes stand for."""
    assert matrix.scales is not None
    codes, scales = _mapped(folder, matrix.weight, np.uint8), _mapped(folder, matrix.scales, np.float32)
    zeros = _mapped(folder, matrix.zero_points, np.uint8) if matrix.zero_points else None
    step = max(1, _SLICE_ITEMS // matrix.inputs)
    for start in range(0, matrix.outputs, step):
        run = slice(start, start + step)
        blocks = Int4Blocks(codes[run], scales[run], None if zeros is None else zeros[run])
        yield dequantised(blocks, matrix.inputs)


def _mapped(folder: Path, tensor: StoredTensor, dtype: type[Number]) -> NDArray[Number]:
    return np.memmap(folder / tensor.file, dtype, "r", tensor.offset, tensor.dims)
