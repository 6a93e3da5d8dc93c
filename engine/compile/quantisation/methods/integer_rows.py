"""int8 rows: weights with a scale for each output, activations with one for each row, both rounded to 8 bits.

Not of `METHODS`: `table.py` says what is stored so.
"""

import numpy as np

from engine.compile.arguments import Quant
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.methods.blocks import INT8_MIDDLE
from engine.compile.quantisation.methods.integer_blocks import INT8_LIMIT
from engine.compile.quantisation.methods.integer_graphs import store_int8_outputs
from engine.compile.quantisation.methods.method import Activations, Method, StoredMatrix

LEAST_REACH = 1e-30  # of a row of zeros


def multiply_rows(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """x [1, rows, inputs] as integers around 128: unsigned ones are multiplied fastest on both kinds of CPU.

    Without VNNI, sums of two products are cut at 32,767: in Whisper base 0.3 to 2.5 % of what comes out.
    """
    assert matrix.scales is not None
    scales = graph.once(f"{x} row scales", lambda: _row_scales(graph, x))
    codes = graph.once(f"{x} row codes", lambda: _row_codes(graph, x, scales))
    one, middle = graph.real(1.0), graph.constant(np.array(INT8_MIDDLE, np.uint8))
    inputs = [codes, graph.stored(matrix.weight), one, graph.parameter(matrix.scales), middle]
    return graph.op("Mul", [graph.op("MatMulIntegerToFloat", inputs, domain=CONTRIB), scales])


def _row_scales(graph: GraphBuilder, x: str) -> str:
    """[1, rows, 1]: of the largest number of each row, with either sign."""
    most, least = (graph.op(kind, [x, graph.integers(-1)], keepdims=1) for kind in ("ReduceMax", "ReduceMin"))
    reach = graph.op("Max", [most, graph.op("Neg", [least]), graph.real(LEAST_REACH)])
    return graph.op("Div", [reach, graph.real(INT8_LIMIT)])


def _row_codes(graph: GraphBuilder, x: str, scales: str) -> str:
    flat = graph.op("Reshape", [scales, graph.integers(-1)])
    middles = graph.op("Expand", [graph.constant(np.array(INT8_MIDDLE, np.uint8)), graph.op("Shape", [flat])])
    return graph.op("QuantizeLinear", [x, flat, middles], axis=1)


INT8_ROWS = Method(Quant.INT8, Activations.FLOAT32, store_int8_outputs, multiply_rows, bytes_per_weight=1)
