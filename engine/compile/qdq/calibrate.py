"""Runs the float graphs on text and notes the range of every activation.

Smallest and largest values are taken inside the graphs, so that a pass gives back two numbers for each tensor
however many rows it has.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from engine.bundle.manifest import Manifest, TensorSpec
from engine.bundle.variant import PassShape
from engine.compile.parity import ChainedSequence, PartChain
from engine.compile.qdq.encodings import MASK_FLOOR, Range
from engine.compile.qdq.float_graph import DEQUANTIZE, FloatGraph

ROWS = 64
PAST = 192
LEAST, MOST = "least/", "most/"


def calibration_shape(max_context: int) -> PassShape:
    """The shape the float graphs are run in: sequences of up to 256 tokens, 64 at a time."""
    rows = min(ROWS, max_context)
    return PassShape(rows, max(1, min(PAST, max_context - rows)))


def observed(graph: FloatGraph) -> tuple[onnx.ModelProto, tuple[TensorSpec, ...]]:
    """The graph with two more outputs for every activation, its smallest and its largest value; and all outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    _gather_codes(model)
    added = []
    for name in graph.activations():
        for prefix, operator in ((LEAST, "ReduceMin"), (MOST, "ReduceMax")):
            output = f"{prefix}{graph.key(name)}"
            model.graph.node.append(helper.make_node(operator, [name], [output], name=output, keepdims=0))
            model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
            added.append(TensorSpec(output, "float32", ()))
    return model, (*graph.outputs, *added)


def _gather_codes(model: onnx.ModelProto) -> None:
    """Look up a table's codes and dequantise those found, not the whole table for a few rows of it."""
    tables = {node.output[0]: node for node in model.graph.node if node.op_type == DEQUANTIZE}
    for node in list(model.graph.node):
        table = tables.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None:
            continue
        index = list(model.graph.node).index(node)
        codes = f"{node.output[0]}_codes"
        parameters = [codes, *table.input[1:]]
        model.graph.node.insert(index + 1, helper.make_node(DEQUANTIZE, parameters, list(node.output), name=codes))
        model.graph.node[index].input[0] = table.input[0]
        model.graph.node[index].output[0] = codes
        model.graph.node.remove(table)


def measure_ranges(
    folder: Path,
    manifest: Manifest,
    shape: PassShape,
    texts: Iterable[Sequence[int]],
    advance: Callable[[int], None],
) -> dict[str, Range]:
    """Run token sequences through the observed graphs of a draft manifest; range by key. Tokens are told to `advance`.

    Only full passes are run: a row that pads would show values that no real token has.
    """
    ranges: dict[str, Range] = {}
    chain = PartChain(folder, manifest, shape)
    for text in texts:
        sequence = ChainedSequence.on(chain, manifest, shape)
        sequence.masked = MASK_FLOOR
        for start in range(0, len(text) - shape.rows + 1, shape.rows):
            outputs = sequence.advance(text[start : start + shape.rows])
            for name, most in outputs.items():
                if name.startswith(MOST):
                    key = name.removeprefix(MOST)
                    seen = Range(float(outputs[LEAST + key]), float(most))
                    ranges[key] = ranges[key].joined(seen) if key in ranges else seen
            advance(shape.rows)
    return ranges
