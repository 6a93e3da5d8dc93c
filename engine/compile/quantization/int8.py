"""int8: 8-bit weights with one scale for each output; rows of activations are rounded to 8 bits as they come."""

import numpy as np
from numpy.typing import NDArray

from engine.compile.ahead import ahead
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantization.method import Activations, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.quantization.scales import without_zeros
from engine.compile.weight_file import WeightFile

SignedBytes = NDArray[np.int8]

# x86 without VNNI adds two u8*s8 products in 16 bits and saturates: 255 * 64 * 2 fits, 255 * 127 * 2 does not.
# Seven bits keep the sums exact on every machine, so a bundle gives the same numbers everywhere.
INT8_LIMIT = 64
_ACTIVATION_LIMIT = 127
_ACTIVATION_ZERO = 128


def int8_columns(weight: Float32) -> tuple[SignedBytes, Float32]:
    """[outputs, inputs] -> integers [inputs, outputs] in +-64 and one symmetric scale for each output, [outputs]."""
    peaks = np.maximum(weight.max(axis=1), -weight.min(axis=1))
    scales = without_zeros(peaks / np.float32(INT8_LIMIT))
    integers = np.rint(weight * (np.float32(1.0) / scales)[:, None]).astype(np.int8)
    return np.ascontiguousarray(integers.T), scales


def _store(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Integers [inputs, outputs], as the product reads them, and scales [outputs]."""
    integers = np.empty((matrix.inputs, matrix.outputs), np.int8)
    scales = np.empty(matrix.outputs, np.float32)
    row = 0
    for codes, factors in ahead(int8_columns, matrix.slices):
        stop = row + len(factors)
        integers[:, row:stop], scales[row:stop] = codes, factors
        row = stop
    weight = file.add(f"{matrix.name}_weight", integers)
    return StoredMatrix(matrix.inputs, matrix.outputs, weight, file.add(f"{matrix.name}_scales", scales))


def _multiply(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """Integer product; every row has its own scale, so it cannot depend on the rows beside it."""
    assert matrix.scales is not None
    codes, row_scales = _row_codes(graph, x)
    zero = graph.constant(np.array(_ACTIVATION_ZERO, np.uint8))
    columns = [graph.constant(np.array(1.0, np.float32)), graph.stored(matrix.scales), zero]
    product = graph.op("MatMulIntegerToFloat", [codes, graph.stored(matrix.weight), *columns], domain=CONTRIB)
    return graph.op("Mul", [product, row_scales])


def _row_codes(graph: GraphBuilder, x: str) -> tuple[str, str]:
    """x [1, rows, width] as u8 around 128 and its scales [1, rows, 1]; made once for each x."""
    row_scales = graph.once(f"{x}_row_scales", lambda: _row_scales(graph, x))

    def codes() -> str:
        scales = graph.reshape(row_scales, "rows")
        zeros = graph.once("row_zeros", lambda: _row_zeros(graph, scales))
        return graph.op("QuantizeLinear", [x, scales, zeros], axis=1)

    return graph.once(f"{x}_codes", codes), row_scales


def _row_scales(graph: GraphBuilder, x: str) -> str:
    """The largest value becomes 127. A row of zeros has scale 0: whatever its codes are, the product is times 0."""
    peaks = graph.op("ReduceMax", [graph.op("Abs", [x]), graph.integers(-1)], keepdims=1)
    return graph.op("Mul", [peaks, graph.real(1.0 / _ACTIVATION_LIMIT)])


def _row_zeros(graph: GraphBuilder, scales: str) -> str:
    """The zero point of every row [rows]: the operator wants one for each scale."""
    zero = graph.constant(np.array([_ACTIVATION_ZERO], np.uint8))
    return graph.op("Expand", [zero, graph.op("Shape", [scales])])


INT8 = Method(Quant.INT8, Activations.FLOAT32, _store, _multiply, bytes_per_weight=1)
