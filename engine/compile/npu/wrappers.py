"""The ONNX file of one pass: its parts' context nodes in a chain, so that a pass is one run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, helper

from engine.bundle.manifest import GraphKind, GraphSpec, TensorSpec
from engine.compile.graph_builder import CONTRIB, IR_VERSION, OPSET


@dataclass(frozen=True, slots=True)
class Link:
    """One part of a pass: the graph it was written as, and its node in the wrapper."""

    spec: GraphSpec
    node: NodeProto


def write_wrapper(name: str, links: Sequence[Link], part: int, parts: int, folder: Path) -> GraphSpec:
    """Write `folder/<name>.onnx` and describe it. Tensors that one part hands to a later one stay inside it."""
    made = {tensor.name for link in links for tensor in link.spec.outputs}
    taken = {tensor.name for link in links for tensor in link.spec.inputs}
    inputs = _unique(tensor for link in links for tensor in link.spec.inputs if tensor.name not in made)
    outputs = _unique(tensor for link in links for tensor in link.spec.outputs if tensor.name not in taken)
    nodes = [link.node for link in links]
    # onnxruntime cannot infer what a context node gives, so what stays inside is declared as well.
    inner = _unique(tensor for link in links for tensor in link.spec.outputs if tensor.name in taken)
    graph = helper.make_graph(nodes, name, _infos(inputs), _infos(outputs), value_info=_infos(inner))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="hexserve")
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    layers = [link.spec for link in links if link.spec.first_layer is not None]
    return GraphSpec(
        name=name,
        file=f"{name}.onnx",
        kind=_kind(links, parts),
        part=part,
        parts=parts,
        inputs=inputs,
        outputs=outputs,
        rows=links[0].spec.rows,
        context=links[-1].spec.context,
        first_layer=layers[0].first_layer if layers else None,
        last_layer=layers[-1].last_layer if layers else None,
    )


def _kind(links: Sequence[Link], parts: int) -> GraphKind:
    if len(links) == 1 and links[0].spec.kind in (GraphKind.LMHEAD, GraphKind.ENCODER):
        return links[0].spec.kind
    return GraphKind.DEFAULT if parts == 1 else GraphKind.DECODER


def _unique(tensors: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple({tensor.name: tensor for tensor in tensors}.values())


def _infos(tensors: Iterable[TensorSpec]) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(
            tensor.name, helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)), list(tensor.shape)
        )
        for tensor in tensors
    ]
