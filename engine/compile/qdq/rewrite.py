"""Puts quantise/dequantise pairs around every operator, and integers on the graph's border."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.bundle.encoding import Encoding
from engine.bundle.manifest import TensorSpec
from engine.compile.qdq.encodings import wide_encoding
from engine.compile.qdq.float_graph import DEQUANTIZE, QUANTIZE, FloatGraph
from engine.compile.qdq.ranges import Range


def quantise_graph(
    graph: FloatGraph, encodings: Mapping[str, Encoding]
) -> tuple[onnx.ModelProto, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The integer graph with its inputs and outputs; `encodings` by key."""
    return _Rewriter(graph, encodings).run()


class _Rewriter:
    """Tensor t of the float graph becomes codes `t`; `t_real` is what operators read, `t_float` what they write."""

    def __init__(self, graph: FloatGraph, encodings: Mapping[str, Encoding]) -> None:
        self._graph = graph
        self._encodings = encodings
        self._initializers = graph.initializers
        self._weights = graph.weights()
        self._nodes: list[onnx.NodeProto] = []
        self._added: dict[str, TensorProto] = {}
        self._real: dict[str, str] = {}

    def run(self) -> tuple[onnx.ModelProto, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Rewrite all nodes."""
        inputs = tuple(self._border(tensor) for tensor in self._graph.inputs)
        outputs = tuple(self._border(tensor) for tensor in self._graph.outputs)
        for tensor in inputs:
            if tensor.scale is not None:
                self._dequantise(tensor.name)
        for node in self._graph.model.graph.node:
            self._rewrite(node)
        model = onnx.ModelProto()
        model.CopyFrom(self._graph.model)
        graph = model.graph
        for field, items in (
            (graph.node, self._nodes),
            (graph.input, [_value_info(tensor) for tensor in inputs]),
            (graph.output, [_value_info(tensor) for tensor in outputs]),
            (graph.initializer, self._used()),
        ):
            del field[:]
            field.extend(items)
        return model, inputs, outputs

    def _used(self) -> list[TensorProto]:
        read = {name for node in self._nodes for name in node.input}
        return [tensor for name, tensor in (self._initializers | self._added).items() if name in read]

    def _border(self, tensor: TensorSpec) -> TensorSpec:
        if not tensor.dtype.startswith("float"):
            return tensor
        encoding = self._encodings[self._graph.key(tensor.name)]
        return replace_spec(tensor, encoding)

    def _encoding(self, name: str) -> Encoding:
        return self._encodings[self._graph.key(name)]

    def _rewrite(self, node: onnx.NodeProto) -> None:
        if node.op_type == DEQUANTIZE:
            self._nodes.append(node)
            return
        if node.op_type == "Identity":
            self._quantise(node.output[0], self._real[node.input[0]])
            return
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[:] = [self._read(name) for name in node.input]
        made.output[:] = [f"{name}_float" for name in node.output]
        self._nodes.append(made)
        for name in node.output:
            self._quantise(name, f"{name}_float")

    def _read(self, name: str) -> str:
        """What an operator reads for `name`: a real value of its codes, or an integer constant as it is."""
        if not name or name in self._weights:
            return name
        constant = self._initializers.get(name)
        if constant is not None and constant.data_type == TensorProto.FLOAT and name not in self._real:
            self._store_constant(name)
        return self._real.get(name, name)

    def _store_constant(self, name: str) -> None:
        """A norm's weight, a bias or a number, as codes of its own."""
        values = np.asarray(self._graph.value(name), np.float64)
        encoding = wide_encoding(Range(float(values.min()), float(values.max())))
        codes = encoding.encode(values)
        self._added[f"{name}_codes"] = numpy_helper.from_array(codes, f"{name}_codes")
        self._dequantise(f"{name}_codes", encoding, name)

    def _quantise(self, name: str, source: str) -> None:
        encoding = self._encoding(name)
        parameters = self._parameters(encoding)
        self._nodes.append(helper.make_node(QUANTIZE, [source, *parameters], [name], name=f"quantise_{name}"))
        self._dequantise(name, encoding)

    def _dequantise(self, codes: str, encoding: Encoding | None = None, name: str = "") -> None:
        name = name or codes
        parameters = self._parameters(encoding or self._encoding(codes))
        real = self._real[name] = f"{name}_real"
        self._nodes.append(helper.make_node(DEQUANTIZE, [codes, *parameters], [real], name=f"dequantise_{name}"))

    def _parameters(self, encoding: Encoding) -> tuple[str, str]:
        """Names of the scale and zero point, stored once for each encoding."""
        label = f"{encoding.dtype}_{encoding.scale!r}_{encoding.zero_point}"
        scale, zero = f"scale_{label}", f"zero_{label}"
        if scale not in self._added:
            self._added[scale] = numpy_helper.from_array(np.array(encoding.scale, np.float32), scale)
            self._added[zero] = numpy_helper.from_array(np.array(encoding.zero_point, encoding.dtype), zero)
        return scale, zero


def replace_spec(tensor: TensorSpec, encoding: Encoding) -> TensorSpec:
    """The same tensor as codes."""
    return TensorSpec(tensor.name, encoding.dtype, tensor.shape, encoding.scale, encoding.zero_point)


def _value_info(tensor: TensorSpec) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return helper.make_tensor_value_info(tensor.name, kind, list(tensor.shape))
