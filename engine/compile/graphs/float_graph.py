"""A part's graph before its activations become integers: which of its tensors are activations, and their keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine.bundle.manifest import TensorSpec
from engine.bundle.tensors import place_of
from engine.compile.graphs.graph_builder import WrittenGraph

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
WIDE = "_wide"  # a KV tensor before it is narrowed to the cache's type


@dataclass(frozen=True, slots=True)
class FloatGraph:
    """One part in one shape: float activations, weights stored as integers behind a DequantizeLinear.

    Tensor names are the same in every shape of a part, which is why one calibration serves all shapes.
    `folder` holds the weights.
    """

    folder: Path
    part: int
    model: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def initializers(self) -> dict[str, TensorProto]:
        """Constants and weights by name."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    def value(self, name: str) -> NDArray[np.generic]:
        """An initializer's numbers, read from the weights if they lie there."""
        return numpy_helper.to_array(self.initializers[name], str(self.folder))

    def key(self, name: str) -> str:
        """Name of a tensor within the bundle: parts share the tensors on their borders and no others."""
        border = any(tensor.name == name for tensor in (*self.inputs, *self.outputs))
        return name if border else f"{self.part}/{name}"

    def weights(self) -> set[str]:
        """Values that are dequantised initializers: their encoding is the stored one."""
        return {node.output[0] for node in self.model.graph.node if node.op_type == DEQUANTIZE}

    def activations(self) -> Iterator[str]:
        """Float tensors that are neither constants nor weights, in the order they come up."""
        for tensor in self.inputs:
            if tensor.dtype.startswith("float"):
                yield tensor.name
        for node in self.model.graph.node:
            if node.op_type != DEQUANTIZE:
                yield from node.output


def prepare(folder: Path, part: int, written: WrittenGraph) -> FloatGraph:
    """Remove Identity nodes by renaming, and put one before each new key and value: there the integer graph narrows
    16-bit activations to the 8 bits of the cache."""
    model = written.model
    renamed = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == "Identity"}
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Identity":
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        copy.output[:] = [renamed.get(name, name) for name in node.output]
        nodes.append(copy)
        for index, name in enumerate(copy.output):
            if place_of(name, "_out") is not None:
                copy.output[index] = name + WIDE
                nodes.append(helper.make_node("Identity", [name + WIDE], [name], name=f"narrow_{name}"))
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return FloatGraph(folder, part, made, written.inputs, written.outputs)
