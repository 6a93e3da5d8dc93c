"""fp32 and fp16: matrices as they are; the weight files of half-precision graphs round every float to float16."""

import numpy as np

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.quantisation.methods.blocks import BlockForm
from engine.compile.quantisation.methods.method import Activations, FloatMatrix, Method, StoredMatrix
from engine.compile.quantisation.weight_file import WeightFile


def store_floats(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """[inputs, outputs], as MatMul reads it: the whole matrix is turned in memory before it is written."""
    turned, row = np.empty((matrix.inputs, matrix.outputs), np.float32), 0
    for piece in matrix.slices:
        turned[:, row : row + len(piece)] = piece.T
        row += len(piece)
    return StoredMatrix(matrix.inputs, matrix.outputs, file.add(f"{matrix.name}_weight", turned))


def multiply_floats(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """A product in the activations' type."""
    return graph.op("MatMul", [x, graph.parameter(matrix.weight)])


FP32 = Method(
    Quant.FP32,
    Activations.FLOAT32,
    store_floats,
    multiply_floats,
    bytes_per_weight=4,
    embedding_bits=32,
    is_exact=True,
    stack=lambda *_: BlockForm(32, block=0),
)
FP16 = Method(Quant.FP16, Activations.FLOAT16, store_floats, multiply_floats, bytes_per_weight=2)
