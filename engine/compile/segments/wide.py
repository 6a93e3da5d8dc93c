"""The wide storage of a 4-bit model: int8 rows made from the stored 4-bit codes, so that both are one model.

Passes of few rows wait for memory and read the 4-bit form; from some rows on the product itself costs more, and
8-bit integers need no unpacking.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.compile.arguments import CompileArguments
from engine.compile.packed import PackedLayer, PackedLinear, PackedPart
from engine.compile.quantization.method import FloatMatrix
from engine.compile.quantization.table import METHODS
from engine.compile.weight_file import WeightFile


class WideWriter:
    """Copies 4-bit matrices of `folder` into `file` as int8; `on_write` is told the numbers of each."""

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
        """Only 4-bit matrices have a wide form: a head may be stored otherwise than the layers."""
        method, matrix = METHODS[linear.quant], linear.matrix
        if method.wide is None or method.read_floats is None or matrix.bits != 4:
            return linear
        wide = METHODS[method.wide]
        floats = FloatMatrix(name, matrix.outputs, matrix.inputs, method.read_floats(self._folder, matrix))
        stored = wide.store(self._file, floats, self._arguments)
        self._on_write(matrix.inputs * matrix.outputs)
        return PackedLinear(wide.quant, stored, linear.bias)
