"""Integer graphs: quantise/dequantise pairs around every operator, after the float graphs were observed on text.

Where images are read, also on texts with rows of images in them.
"""

import shutil
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine.bundle.manifest import GraphKind, TensorSpec
from engine.bundle.tensors import Encoding
from engine.bundle.weight_files import EMBEDDING_FILE
from engine.compile.arguments import QualityLevel, Split
from engine.compile.calibration.encodings import (
    Range,
    choose_encodings,
    error_range,
    extreme_range,
    wide_encoding,
)
from engine.compile.calibration.observe import Passage, calibration_shape, observe, observed_graph
from engine.compile.check.parity import plain_cpu
from engine.compile.compilation import Compilation, describe, pool_graph
from engine.compile.graphs.graph_builder import (
    DEQUANTIZE,
    QUANTIZE,
    FloatGraph,
    WrittenGraph,
    prepare,
    replace_all,
    value_info,
)
from engine.compile.graphs.pool import GraphPlan, plan_graphs, save_graph
from engine.compile.graphs.vision import vision_graph, vision_network
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Float32
from engine.errors import CompileError
from engine.models.vision_network import VISION_DATA
from engine.runtime.vision import FixedVisionGraph


class IntegerRewriter:
    """Makes an integer graph; `encodings` by key. Tensor t of the float graph becomes codes `t`; `t_real` is what
    operators read, `t_float` what they write."""

    def __init__(self, graph: FloatGraph, encodings: Mapping[str, Encoding]) -> None:
        self._graph = graph
        self._encodings = encodings
        self._initializers = graph.initializers
        # Dequantised initializers: their encoding is the stored one.
        self._weights = {node.output[0] for node in graph.model.graph.node if node.op_type == DEQUANTIZE}
        self._nodes: list[onnx.NodeProto] = []
        self._added: dict[str, TensorProto] = {}
        self._real: dict[str, str] = {}

    def run(self) -> WrittenGraph:
        inputs, outputs = (tuple(map(self._border, each)) for each in (self._graph.inputs, self._graph.outputs))
        for tensor in inputs:
            if tensor.scale is not None:
                self._dequantise(tensor.name)
        for node in self._graph.model.graph.node:
            self._rewrite(node)
        model = onnx.ModelProto()
        model.CopyFrom(self._graph.model)
        graph = model.graph
        read = {name for node in self._nodes for name in node.input}
        used = [tensor for name, tensor in (self._initializers | self._added).items() if name in read]
        replace_all(graph.node, self._nodes)
        replace_all(graph.input, map(value_info, inputs))
        replace_all(graph.output, map(value_info, outputs))
        replace_all(graph.initializer, used)
        return WrittenGraph(model, inputs, outputs)

    def _border(self, tensor: TensorSpec) -> TensorSpec:
        is_float = tensor.dtype.startswith("float")
        return coded_as(tensor, self._encoding(tensor.name)) if is_float else tensor

    def _encoding(self, name: str) -> Encoding:
        return self._encodings[self._graph.key(name)]

    def _rewrite(self, node: onnx.NodeProto) -> None:
        if node.op_type == DEQUANTIZE:
            self._nodes.append(node)
        elif node.op_type == "Identity":
            self._quantise(node.output[0], self._real[node.input[0]])
        else:
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
        self._added[f"{name}_codes"] = numpy_helper.from_array(encoding.encode(values), f"{name}_codes")
        self._dequantise(f"{name}_codes", encoding, name)

    def _quantise(self, name: str, source: str) -> None:
        parameters = self._parameters(self._encoding(name))
        self._nodes.append(helper.make_node(QUANTIZE, [source, *parameters], [name], name=f"quantise_{name}"))
        self._dequantise(name)

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


def coded_as(tensor: TensorSpec, encoding: Encoding) -> TensorSpec:
    return TensorSpec(tensor.name, encoding.dtype, tensor.shape, encoding.scale, encoding.zero_point)


SEQUENCES = 16


def calibration_stage(work: Compilation) -> None:
    """Find an encoding for every activation by running float graphs on passages; the graphs do not stay."""
    folder = work.graph_folder
    shape = calibration_shape(work.network.compiled_context)
    length = shape.context // shape.rows * shape.rows
    passages = passages_of(work, work.calibration_texts(length, SEQUENCES))
    work.progress.stage("calibration", sum(map(len, passages)), "tokens")
    graphs, specs = [], []
    for part in work.parts:
        (plan,) = plan_graphs(part, (shape,))
        graphs.append(prepare(folder, part.number, pool_graph(work, plan)))
        specs.append(save_graph(plan, observed_graph(graphs[-1]), folder))
    observed = observe(folder, specs, work.network.spec, shape, passages, work.progress.advance)
    for spec in specs:
        (folder / spec.file).unlink()
    choose = extreme_range if work.arguments.quality is QualityLevel.FAST else error_range
    largest_factor = max(rope.factor for rope in work.network.spec.ropes.values())
    work.encodings = choose_encodings(graphs, observed, largest_factor, choose, work.kv_dtype)


def integer_graph(work: Compilation, plan: GraphPlan) -> WrittenGraph:
    """One graph; those of all parts and shapes have the same encodings. CompileError when an activation was never
    calibrated."""
    graph = prepare(work.graph_folder, plan.part.number, pool_graph(work, plan))
    missing = [name for name in graph.activations() if graph.key(name) not in work.encodings]
    if missing:
        raise CompileError(f"activation {missing[0]} of {plan.name} was not calibrated")
    return IntegerRewriter(graph, work.encodings).run()


SQUARES = (1, 2, 4, 8, 16, 32, 64, 128)  # of a side of each picture


def passages_of(work: Compilation, texts: list[list[int]]) -> list[Passage]:
    """Token ids, or rows of the table that the host looks tokens up in; it has been written by then."""
    if work.arguments.split is not Split.HOST_LMHEAD:
        return [np.array(text, np.int32) for text in texts]
    table = np.memmap(work.folder / EMBEDDING_FILE, "<f4", "r").reshape(work.network.spec.vocab, -1)
    rows = [np.array(table[text], np.float32) for text in texts]
    images = _images(work) if work.network.reads_images else []
    return [*rows, *(with_image(text, image) for text, image in zip(rows, images, strict=False))]


def with_image(text: Float32, image: Float32) -> Float32:
    """Rows [tokens, H] of a text whose middle half is an image's [T, H], or as many of these, spread over all."""
    count, place = min(len(image), len(text) // 2), len(text) // 4
    found = text.copy()
    found[place : place + count] = image[np.arange(count) * len(image) // count]
    return found


def pictures(height: int, width: int) -> Iterator[NDArray[np.uint8]]:
    """Squares of any colours [3, height, width], from one of all to nearly noise."""
    random = np.random.default_rng(0)
    for count in SQUARES:
        colours = random.integers(0, 256, (3, count, count), np.uint8)
        yield colours[:, np.arange(height)[:, None] * count // height, np.arange(width) * count // width]


def _images(work: Compilation) -> list[Float32]:
    """Rows [T, H] of every picture, as the encoder gives them in float32 on the CPU."""
    network, folder = vision_network(work), work.graph_folder / "float_vision"
    fixed = network.spec.fixed
    assert fixed is not None, "an NPU has images of one size"
    folder.mkdir()
    with WeightFile(folder, VISION_DATA) as file:
        graph = vision_graph(network, work.original, file, work.network.spec.hidden, "float32", lambda _: None)
    spec = graph.save(folder, "vision", GraphKind.IMAGE_ENCODER)
    manifest = msgspec.structs.replace(describe(work), vision=network.spec, image_graph=spec)
    reader = FixedVisionGraph(folder, manifest, plain_cpu())
    found = [reader.read(pixels) for pixels in pictures(fixed.height, fixed.width)]
    del reader  # it maps the weights
    shutil.rmtree(folder)
    return found
