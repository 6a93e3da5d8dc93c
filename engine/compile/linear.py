"""Linear layers and the embedding, one function for each storage form."""

import numpy as np
import onnx

from engine.compile.arguments import INTEGER_GRAPHS, Quant
from engine.compile.graph_builder import CONTRIB, GraphBuilder
from engine.compile.packed import PackedLinear, PackedTable

_ACTIVATION_LIMIT = 127
_ACTIVATION_ZERO = 128


def linear(graph: GraphBuilder, x: str, layer: PackedLinear) -> str:
    """x [1, rows, inputs] -> [1, rows, outputs]."""
    if layer.quant is Quant.INT4:
        return _int4(graph, x, layer)
    if layer.quant is Quant.INT8:
        return _int8(graph, x, layer)
    if layer.quant in INTEGER_GRAPHS:
        return _with_bias(graph, graph.op("MatMul", [x, _stored_integers(graph, layer)]), layer)
    return _with_bias(graph, graph.op("MatMul", [x, graph.parameter(layer.weight)]), layer)


def _with_bias(graph: GraphBuilder, product: str, layer: PackedLinear) -> str:
    if layer.bias is None:
        return product
    return graph.op("Add", [product, graph.parameter(layer.bias)])


def _stored_integers(graph: GraphBuilder, layer: PackedLinear) -> str:
    """The matrix behind its DequantizeLinear, which the back end folds into the product."""
    assert layer.scales is not None
    inputs = [graph.stored(layer.weight), graph.stored(layer.scales)]
    name = f"{layer.weight.name}_real"
    if layer.block:
        return graph.op("DequantizeLinear", inputs, name=name, axis=0, block_size=layer.block)
    return graph.op("DequantizeLinear", inputs, name=name, axis=1)


def _int4(graph: GraphBuilder, x: str, layer: PackedLinear) -> str:
    """Accuracy level 4: the operator rounds each block of each row to int8 by itself."""
    assert layer.scales is not None
    zeros = graph.stored(layer.zero_points) if layer.zero_points else ""
    inputs = [x, graph.stored(layer.weight), graph.parameter(layer.scales), zeros]
    product = graph.op(
        "MatMulNBits",
        inputs if zeros else inputs[:3],
        domain=CONTRIB,
        K=layer.inputs,
        N=layer.outputs,
        bits=4,
        block_size=layer.block,
        accuracy_level=4,
    )
    return _with_bias(graph, product, layer)


def _int8(graph: GraphBuilder, x: str, layer: PackedLinear) -> str:
    """Integer product; every row has its own scale, so it cannot depend on the rows beside it."""
    assert layer.scales is not None
    codes, row_scales = _row_codes(graph, x)
    zero = graph.constant(np.array(_ACTIVATION_ZERO, np.uint8))
    columns = [graph.constant(np.array(1.0, np.float32)), graph.stored(layer.scales), zero]
    product = graph.op("MatMulIntegerToFloat", [codes, graph.stored(layer.weight), *columns], domain=CONTRIB)
    return _with_bias(graph, graph.op("Mul", [product, row_scales]), layer)


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


def embed(graph: GraphBuilder, token_ids: str, table: PackedTable) -> str:
    """token_ids [1, rows] -> [1, rows, hidden]."""
    if table.zero_point is not None:
        assert table.scales is not None
        codes = [graph.stored(tensor) for tensor in (table.weight, table.scales, table.zero_point)]
        real = graph.op("DequantizeLinear", codes, name=f"{table.weight.name}_real")
        return graph.op("Gather", [real, token_ids], axis=0)
    if table.bits == 4:
        assert table.scales is not None
        inputs = [graph.stored(table.weight), token_ids, graph.stored(table.scales)]
        rows = graph.op(
            "GatherBlockQuantized",
            inputs,
            domain=CONTRIB,
            gather_axis=0,
            quantize_axis=1,
            block_size=table.block,
        )
        return _as_activations(graph, rows, onnx.TensorProto.FLOAT)
    rows = graph.op("Gather", [graph.stored(table.weight), token_ids], axis=0)
    rows = _as_activations(graph, rows, table.weight.onnx_type)
    if table.scales is None:
        return rows
    scales = graph.op("Gather", [graph.stored(table.scales), token_ids], axis=0)
    return graph.op("Mul", [rows, _as_activations(graph, scales, onnx.TensorProto.FLOAT)])


def _as_activations(graph: GraphBuilder, value: str, onnx_type: int) -> str:
    return value if onnx_type == graph.onnx_dtype else graph.op("Cast", [value], to=graph.onnx_dtype)
