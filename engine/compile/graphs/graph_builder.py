"""Collects the nodes, tensors and declared inputs and outputs of one ONNX graph."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from engine.bundle.manifest import GraphKind, GraphSpec, TensorSpec
from engine.bundle.tensors import Form, place_of
from engine.bundle.variant import StepShape
from engine.compile.quantisation.weight_file import StoredTensor

OPSET = 23  # RMSNormalization and RotaryEmbedding
IR_VERSION = 11
CONTRIB = "com.microsoft"

ROWS, PAST, CONTEXT = "rows", "past", "context"
WINDOW_PAST = "window_past"  # of layers with a window, where these have fewer columns
WINDOW_CONTEXT, LOGIT_ROWS = "window_context", "logit_rows"

Dim = int | str


@dataclass(frozen=True, slots=True)
class WrittenGraph:
    """A graph's model with its declared inputs and outputs."""

    model: onnx.ModelProto
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def save(
        self, folder: Path, name: str, kind: GraphKind, part: int = 1, parts: int = 1, **more: int | None
    ) -> GraphSpec:
        """Write `folder/<name>.onnx` and describe it. more: rows, context and layers."""
        (folder / f"{name}.onnx").write_bytes(self.model.SerializeToString())
        return GraphSpec(name, f"{name}.onnx", kind, part, parts, self.inputs, self.outputs, **more)


@dataclass(slots=True)
class Scope:
    """How the names of nodes begin and end, and how many there are."""

    name: str = ""
    ending: str = ""
    nodes: int = 0


class GraphBuilder:
    """Writes one graph. dtype: of activations, masks and caches ('float32' or 'float16'). shape None leaves rows, past
    and context symbolic; otherwise every dimension is a number. prefix: of all names. window_past: most past columns of
    layers with a window, 0 = as many as of others."""

    def __init__(self, dtype: str, shape: StepShape | None, prefix: str = "", window_past: int = 0) -> None:
        self._prefix = prefix
        self.dtype = np.dtype(dtype)
        self.onnx_dtype = int(helper.np_dtype_to_tensor_dtype(self.dtype))
        self.shape = shape
        self.inputs: list[TensorSpec] = []
        self.outputs: list[TensorSpec] = []
        self._numbers: dict[str, int] = {}
        if shape is not None:
            past = min(shape.past, window_past or shape.past)
            self._numbers = {ROWS: shape.rows, LOGIT_ROWS: shape.rows, PAST: shape.past, CONTEXT: shape.context}
            self._numbers |= {WINDOW_PAST: past, WINDOW_CONTEXT: past + shape.rows}
        self._nodes: list[NodeProto] = []
        self._scope = Scope()
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._shared: dict[str, str] = {}

    def op(self, kind: str, inputs: Sequence[str], domain: str = "", name: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.op_many(kind, inputs, 1, domain, name, **attributes)[0]

    def op_many(
        self, kind: str, inputs: Sequence[str], count: int, domain: str = "", name: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node with `count` outputs; `name` names the last of them."""
        outputs = [f"{self._stem(kind)}_{index}{self._scope.ending}" for index in range(count)]
        outputs[-1] = name or outputs[-1]
        return self.node(kind, inputs, outputs, domain, **attributes)

    def node(
        self, kind: str, inputs: Sequence[str], outputs: list[str], domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node whose outputs have these names."""
        name = self._stem(kind) + self._scope.ending
        self._nodes.append(helper.make_node(kind, list(inputs), outputs, name=name, domain=domain, **attributes))
        self._scope.nodes += 1
        return outputs

    def split(self, x: str, *widths: int, name: str = "") -> list[str]:
        """Pieces of these widths along the last axis; `name` names the last of them."""
        return self.op_many("Split", [x, self.integers(*widths)], len(widths), name=name, axis=-1)

    def slice(self, x: str, start: int, stop: int, axis: int) -> str:
        """The places `start` to `stop` - 1 of an axis."""
        return self.op("Slice", [x, *(self.integers(number) for number in (start, stop, axis))])

    def transpose(self, x: str, *perm: int, name: str = "") -> str:
        return self.op("Transpose", [x], name=name, perm=perm)

    def attention(self, query: str, key: str, value: str, mask: str = "") -> str:
        """[.., N, D], [.., D, C] and [.., C, D] -> [.., N, D]. mask: added to scores [.., N, C]."""
        scores = self.op("MatMul", [query, key])
        weights = self.op("Softmax", [self.op("Add", [scores, mask]) if mask else scores], axis=-1)
        return self.op("MatMul", [weights, value])

    @contextmanager
    def scope(self, name: str, ending: str = "") -> Iterator[None]:
        """Nodes whose names begin and end so and are counted by themselves: no name outside depends on them."""
        outer, self._scope = self._scope, Scope(f"{name}_", ending)
        yield
        self._scope = outer

    def _stem(self, kind: str) -> str:
        """What the next node is called."""
        return f"{self._prefix}{self._scope.name}{kind}_{self._scope.nodes}"

    def constant(self, value: NDArray[np.generic]) -> str:
        """A small inline tensor; equal ones are written once."""
        array = np.asarray(value)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = f"{self._prefix}constant_{len(self._constants)}"
            self._constants[key] = name
            self._tensors[name] = numpy_helper.from_array(array, name)
        return self._constants[key]

    def real(self, value: float) -> str:
        """A scalar of the activations' type."""
        return self.constant(np.array(value, self.dtype))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def stored(self, tensor: StoredTensor) -> str:
        """An initializer whose bytes lie in a data file."""
        if tensor.name not in self._tensors:
            proto = TensorProto(name=tensor.name, data_type=tensor.onnx_type, dims=tensor.dims)
            proto.data_location = TensorProto.EXTERNAL
            for key, value in (("location", tensor.file), ("offset", tensor.offset), ("length", tensor.length)):
                proto.external_data.add(key=key, value=str(value))
            self._tensors[tensor.name] = proto
        return tensor.name

    def parameter(self, tensor: StoredTensor) -> str:
        """A stored tensor as activations' type: weights are kept as float32."""
        return self.activations(self.stored(tensor), tensor.onnx_type)

    def activations(self, x: str, onnx_type: int) -> str:
        """A value of this type as activations' type."""
        return x if onnx_type == self.onnx_dtype else self.op("Cast", [x], to=self.onnx_dtype)

    def once(self, key: str, make: Callable[[], str]) -> str:
        """A value that every layer uses: made at its first use, then shared."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def reshape(self, value: str, *dims: Dim, name: str = "") -> str:
        return self.op("Reshape", [value, self.dims(*dims)], name=name)

    def dims(self, *dims: Dim) -> str:
        """The target of a Reshape: numbers, ROWS (perhaps with a factor: "rows*4") and CONTEXT, which free graphs copy
        from the input's axis of the same index."""
        return self.integers(*map(self._reshape_dim, dims))

    def add_input(self, name: str, dtype: str, *dims: Dim) -> str:
        self.inputs.append(TensorSpec(name, dtype, self._resolve(dims)))
        return name

    def add_output(self, name: str, dtype: str, *dims: Dim) -> None:
        self.outputs.append(TensorSpec(name, dtype, self._resolve(dims)))

    def give(self, x: str, name: str, dtype: str, *dims: Dim) -> None:
        """A value as an output of that name."""
        self.op("Identity", [x], name=name)
        self.add_output(name, dtype, *dims)

    def declare(self, inputs: Mapping[str, Form], outputs: Mapping[str, Form]) -> None:
        self.inputs += [TensorSpec(name, dtype, self._resolve(dims)) for name, (dtype, dims) in inputs.items()]
        self.outputs += [TensorSpec(name, dtype, self._resolve(dims)) for name, (dtype, dims) in outputs.items()]

    def model(self, name: str) -> onnx.ModelProto:
        """The finished graph. Free graphs carry symbolic dimension names."""
        inputs, outputs = ([*map(value_info, tensors)] for tensors in (self.inputs, self.outputs))
        return as_model(helper.make_graph(self._nodes, name, inputs, outputs, list(self._tensors.values())))

    def written(self, name: str) -> WrittenGraph:
        """The same with what it declares."""
        return WrittenGraph(self.model(name), tuple(self.inputs), tuple(self.outputs))

    def save(self, folder: Path, name: str, kind: GraphKind, part: int = 1, parts: int = 1) -> GraphSpec:
        """Write `folder/<name>.onnx` and describe it."""
        return self.written(name).save(folder, name, kind, part, parts)

    def _resolve(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple(self._numbers.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)

    def _reshape_dim(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        symbol, _, factor = dim.partition("*")
        if symbol in self._numbers:
            return self._numbers[symbol] * int(factor or 1)
        return 0 if symbol == CONTEXT else -1


def as_model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """A graph with the versions that it is written in."""
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="hexserve")


def value_info(spec: TensorSpec) -> onnx.ValueInfoProto:
    """An input or output as a graph declares it."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(spec.name, kind, list(spec.shape))


QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
WIDE = "_wide"  # a KV tensor before it is narrowed to the cache's type


@dataclass(frozen=True, slots=True)
class FloatGraph(WrittenGraph):
    """One part in one shape: float activations, weights stored as integers behind a DequantizeLinear. Tensor names are
    the same in every shape of a part, which is why one calibration serves all shapes. `folder` holds the weights."""

    folder: Path
    part: int

    @property
    def initializers(self) -> dict[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    def value(self, name: str) -> NDArray[np.generic]:
        """An initializer's numbers, read from the weights if they lie there."""
        return numpy_helper.to_array(self.initializers[name], str(self.folder))

    def key(self, name: str) -> str:
        """Name of a tensor within the bundle: parts share the tensors on their borders and no others."""
        border = any(tensor.name == name for tensor in (*self.inputs, *self.outputs))
        return name if border else f"{self.part}/{name}"

    def activations(self) -> Iterator[str]:
        """Float tensors that are neither constants nor weights, in the order they come up."""
        yield from (tensor.name for tensor in self.inputs if tensor.dtype.startswith("float"))
        yield from (name for node in self.model.graph.node if node.op_type != DEQUANTIZE for name in node.output)


def prepare(folder: Path, part: int, written: WrittenGraph) -> FloatGraph:
    """Remove Identity nodes by renaming, and put one before each new key and value: there the integer graph narrows
    16-bit activations to the 8 bits of the cache."""
    made, nodes = onnx.ModelProto(), list[NodeProto]()
    made.CopyFrom(written.model)
    kept = [node for node in made.graph.node if node.op_type != "Identity"]
    rename(kept, {node.input[0]: node.output[0] for node in made.graph.node if node.op_type == "Identity"})
    for node in kept:
        nodes.append(node)
        for index, name in enumerate(node.output):
            if place_of(name, "_out") is not None:
                node.output[index] = name + WIDE
                nodes.append(helper.make_node("Identity", [name + WIDE], [name], name=f"narrow_{name}"))
    replace_all(made.graph.node, nodes)
    return FloatGraph(made, written.inputs, written.outputs, folder, part)


def rename(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> None:
    """Give tensors other names wherever a node reads or writes them."""
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def replace_all(field: Any, items: Iterable[Any]) -> None:
    """Put other messages in the place of those of a repeated field, which may be among them."""
    kept = list(items)
    del field[:]
    field.extend(kept)
