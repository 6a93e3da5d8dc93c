"""w8a16: symmetric 8-bit weights with one scale for each output, in graphs whose activations are 16-bit integers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graph_builder import GraphBuilder
from engine.compile.quantization.method import Activations, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.weight_file import WeightFile

SignedBytes = NDArray[np.int8]

INT8_LIMIT = 127
TINY = np.float32(1e-30)


@dataclass(frozen=True, slots=True)
class Columns:
    """Integers [outputs, inputs] of a matrix [outputs, inputs], and scales [outputs] or [outputs, blocks]."""

    integers: SignedBytes
    scales: Float32


def int8_outputs(weight: Float32) -> Columns:
    """[outputs, inputs]: the largest weight of each output becomes 127."""
    scales = scales_of(np.abs(weight).max(axis=1), INT8_LIMIT)
    return Columns(np.rint(weight / scales[:, None]).astype(np.int8), scales)


def scales_of(peaks: Float32, limit: int) -> Float32:
    """Zeros, and what a scale would vanish for, get a scale of 1: they stay zeros instead of becoming NaN."""
    return np.where(peaks < TINY, np.float32(1.0), peaks / np.float32(limit)).astype(np.float32)


def joined(pieces: Sequence[Columns]) -> tuple[SignedBytes, Float32]:
    """Pieces of a matrix, one below the other, turned to [inputs, outputs] as MatMul reads it; scales turned too."""
    integers = np.concatenate([piece.integers for piece in pieces]).T
    scales = np.concatenate([piece.scales for piece in pieces]).T
    return np.ascontiguousarray(integers), np.ascontiguousarray(scales)


def multiply_integers(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """The stored integers stand behind a DequantizeLinear, which the back end folds into the product."""
    assert matrix.scales is not None
    inputs = [graph.stored(matrix.weight), graph.stored(matrix.scales)]
    name = f"{matrix.weight.name}_real"
    if matrix.block:
        real = graph.op("DequantizeLinear", inputs, name=name, axis=0, block_size=matrix.block)
    else:
        real = graph.op("DequantizeLinear", inputs, name=name, axis=1)
    return graph.op("MatMul", [x, real])


def _store(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Integers [inputs, outputs] and scales [outputs]."""
    integers, scales = joined([int8_outputs(piece) for piece in matrix.slices])
    dims = (matrix.inputs, matrix.outputs)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.INT8, dims, [integers])
    return StoredMatrix(*dims, weight, file.add(f"{matrix.name}_scales", scales))


W8A16 = Method(Quant.W8A16, Activations.INTEGER, _store, multiply_integers, bytes_per_weight=1)
