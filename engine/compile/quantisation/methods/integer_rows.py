"""Rows of 8 bits: a scale for each output's weights, and one for each row of activations, on CPUs."""

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import Quant
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.methods.blocks import INT8_LIMIT, INT8_MIDDLE, Blocks, Float32, floats_of
from engine.compile.quantisation.methods.hadamard import rotate_rows, rotated_rows
from engine.compile.quantisation.methods.integer_graphs import store_int8_outputs
from engine.compile.quantisation.methods.method import Activations, FloatMatrix, Method, StoredMatrix
from engine.compile.quantisation.rounding.codes import row_scales
from engine.compile.quantisation.weight_file import WeightFile, ahead


def store_parts(file: WeightFile, matrix: FloatMatrix) -> StoredMatrix:
    """Of each part the integers [inputs, outputs], one below the other; scales [outputs of all]. Inputs are rotated."""

    def of_rows(piece: Float32 | Blocks) -> tuple[NDArray[np.int8], Float32]:
        rows = rotated_rows(floats_of(piece, matrix.inputs))
        scales = row_scales(rows).scales
        return np.rint(np.divide(rows, scales, out=rows), out=rows).astype(np.int8), scales[:, 0]

    integers, scales = map(np.concatenate, zip(*ahead(of_rows, matrix.in_order), strict=True))
    turned = (np.ascontiguousarray(part.T) for part in np.split(integers, matrix.parts))
    dims = (matrix.parts * matrix.inputs, matrix.outputs // matrix.parts)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.INT8, dims, turned)
    stored_scales = file.add(f"{matrix.name}_scales", scales)
    return StoredMatrix(matrix.inputs, matrix.outputs, weight, stored_scales, bits=8, is_rotated=True)


def multiply_rows(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """x [1, rows, inputs] as integers around 128: unsigned ones are multiplied fastest on both kinds of CPU."""
    if matrix.weight.dims[0] > matrix.inputs:
        return graph.op("Concat", [multiply_rows(graph, x, half) for half in matrix.halves()], axis=-1)
    assert matrix.scales is not None
    x = rotate_rows(graph, x, matrix.inputs) if matrix.is_rotated else x
    scales = graph.once(f"{x} row scales", lambda: _row_scales(graph, x))
    codes = graph.once(f"{x} row codes", lambda: _row_codes(graph, x, scales))
    one, middle = graph.real(1.0), graph.constant(np.array(INT8_MIDDLE, np.uint8))
    inputs = [codes, graph.stored(matrix.weight), one, graph.parameter(matrix.scales), middle]
    return graph.op("Mul", [graph.op("MatMulIntegerToFloat", inputs, domain=CONTRIB), scales])


def _row_scales(graph: GraphBuilder, x: str) -> str:
    """[1, rows, 1]: of the largest number of each row, with either sign. That of zeros is 0, and so its product."""
    reach = graph.op("ReduceMax", [graph.op("Abs", [x]), graph.integers(-1)], keepdims=1)
    return graph.op("Mul", [reach, graph.real(1 / INT8_LIMIT)])


def _row_codes(graph: GraphBuilder, x: str, scales: str) -> str:
    flat = graph.op("Reshape", [scales, graph.integers(-1)])
    middles = graph.op("Expand", [graph.constant(np.array(INT8_MIDDLE, np.uint8)), graph.op("Shape", [flat])])
    return graph.op("QuantizeLinear", [x, flat, middles], axis=1)


# `table.py` says whose matrices are stored so, not rotated. Gate and up of other methods are parts (`store_parts`).
INT8_ROWS = Method(Quant.INT8, Activations.FLOAT32, store_int8_outputs, multiply_rows, bytes_per_weight=1)
