"""Writes fused graphs with float activations."""

import numpy as np

from engine.bundle.encoding import FLOATS, Encoding
from engine.bundle.fused import FusedShape, fused_shape
from engine.bundle.manifest import TensorSpec
from engine.compile.embedding import embed
from engine.compile.fused.builder import FusedBuilder
from engine.compile.fused.layers import FusedLayerWriter
from engine.compile.graph_builder import GraphBuilder
from engine.compile.graphs import GraphPlan
from engine.compile.layers import MASK_INPUT
from engine.compile.linear import linear
from engine.compile.lowering import COS_INPUT, SIN_INPUT, Lowering
from engine.compile.packed import PackedPart
from engine.models.network import Network

# 65535 says 0 and 0 says what float masks say of a hidden column.
MASK_CODES = Encoding("uint16", -FLOATS["float32"] / 65535, 65535)


def build_fused_graph(
    plan: GraphPlan, packed: PackedPart, network: Network, lowering: Lowering, dtype: str, has_mask_codes: bool
) -> FusedBuilder:
    """The nodes of one graph. Caches are called as in `bundle/fused.py`, fresh keys and values as in the row graph.

    has_mask_codes: the mask comes as 0 and 65535 and is made numbers in the graph; otherwise it has the dtype.
    """
    assert plan.shape is not None and packed.table is not None and packed.head is not None and packed.final_norm
    graph, shape, half = FusedBuilder(dtype, plan.shape), fused_shape(plan.name), network.spec.rope.rotary_dim // 2
    graph.add_input("input_ids", "int32", 1, "rows")
    graph.add_input(COS_INPUT, dtype, 1, 1, "rows", half)
    graph.add_input(SIN_INPUT, dtype, 1, 1, "rows", half)
    mask = _add_mask(graph, has_mask_codes)
    writer = FusedLayerWriter(graph, lowering, network, fused=graph, shape=shape, mask=mask)
    x = embed(graph, "input_ids", packed.table)
    for index, layer in zip(plan.part.layers, packed.layers, strict=True):
        x = writer.layer(x, layer, index)
    x = _last_rows(graph, x, shape)
    x = linear(graph, writer.norm(x, graph.parameter(packed.final_norm)), packed.head)
    graph.op("Identity", [x], name="logits")
    graph.add_output("logits", dtype, 1, shape.logit_rows, network.spec.vocab)
    return graph


def _add_mask(graph: GraphBuilder, has_codes: bool) -> str:
    """Declare the mask; the value to add to scores."""
    if not has_codes:
        return graph.add_input(MASK_INPUT, str(graph.dtype), 1, 1, "rows", "context")
    graph.add_input(MASK_INPUT, MASK_CODES.dtype, 1, 1, "rows", "context")
    (mask,) = (tensor for tensor in graph.inputs if tensor.name == MASK_INPUT)
    coded = TensorSpec(mask.name, mask.dtype, mask.shape, MASK_CODES.scale, MASK_CODES.zero_point)
    graph.inputs[graph.inputs.index(mask)] = coded
    scale = graph.constant(np.array(MASK_CODES.scale, np.float32))
    return graph.op("DequantizeLinear", [MASK_INPUT, scale, graph.constant(np.array(MASK_CODES.zero_point, np.uint16))])


def _last_rows(graph: FusedBuilder, x: str, shape: FusedShape) -> str:
    """x [1, N, hidden] -> the rows whose logits are read: the prompt's last one and every decode."""
    if shape.logit_rows < shape.rows:
        x = graph.cut(x, 1, shape.rows - shape.logit_rows, shape.rows)
    graph.narrow(shape.logit_rows)
    return x
