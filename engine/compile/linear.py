"""Linear layers: the product is the storage method's, the bias is the same for all."""

from engine.compile.graph_builder import GraphBuilder
from engine.compile.packed import PackedLinear
from engine.compile.quantization.table import METHODS


def linear(graph: GraphBuilder, x: str, layer: PackedLinear) -> str:
    """x [1, rows, inputs] -> [1, rows, outputs]."""
    product = METHODS[layer.quant].multiply(graph, x, layer.matrix)
    return product if layer.bias is None else graph.op("Add", [product, graph.parameter(layer.bias)])
