"""Runs the float graphs on text and notes the extremes of every activation in each text.

Smallest and largest values are taken inside the graphs, so that a pass gives back three numbers for each tensor
however many rows it has, and two are kept of a text.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import onnx
from onnx import helper

from engine.bundle.manifest import Manifest, TensorSpec
from engine.bundle.variant import StepShape
from engine.compile.calibration.encodings import MASK_FLOOR, Observed, Range
from engine.compile.check.parity import ChainedSequence, PartChain
from engine.compile.graphs.float_graph import DEQUANTIZE, FloatGraph
from engine.compile.graphs.graph_builder import WrittenGraph, value_info

ROWS = 64
PAST = 192
LEAST, MOST, COUNT = "least/", "most/", "count/"


def calibration_shape(max_context: int) -> StepShape:
    """The shape the float graphs are run in: sequences of up to 256 tokens, 64 at a time."""
    rows = min(ROWS, max_context)
    return StepShape(rows, max(1, min(PAST, max_context - rows)))


def observed_graph(graph: FloatGraph) -> WrittenGraph:
    """The graph with three more outputs for every activation: smallest and largest value, number."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    _gather_codes(model)
    added = []
    for name in graph.activations():
        key = graph.key(name)
        for output, operator, dtype in (
            (LEAST + key, "ReduceMin", "float32"),
            (MOST + key, "ReduceMax", "float32"),
            (COUNT + key, "Size", "int64"),
        ):
            node = helper.make_node(operator, [name], [output], name=output)
            if operator != "Size":
                node.attribute.append(helper.make_attribute("keepdims", 0))
            model.graph.node.append(node)
            added.append(TensorSpec(output, dtype, ()))
            model.graph.output.append(value_info(added[-1]))
    return WrittenGraph(model, graph.inputs, (*graph.outputs, *added))


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


def observe(
    folder: Path,
    manifest: Manifest,
    shape: StepShape,
    texts: Iterable[Sequence[int]],
    advance: Callable[[int], None],
) -> dict[str, Observed]:
    """Run token sequences through the observed graphs of a draft manifest; by key. Tokens are told to `advance`.

    Only full passes are run: a row that pads would show values that no real token has.
    """
    extremes: dict[str, list[Range]] = {}
    values: dict[str, int] = {}
    chain = PartChain(folder, manifest, shape)
    for text in texts:
        seen: dict[str, Range] = {}
        values = {}
        sequence = ChainedSequence.on(chain, manifest, shape)
        sequence.masked = MASK_FLOOR
        for start in range(0, len(text) - shape.rows + 1, shape.rows):
            outputs = sequence.advance(text[start : start + shape.rows])
            for key in (name.removeprefix(MOST) for name in outputs if name.startswith(MOST)):
                found = Range(float(outputs[LEAST + key]), float(outputs[MOST + key]))
                seen[key] = seen[key].joined(found) if key in seen else found
                values[key] = values.get(key, 0) + int(outputs[COUNT + key])
            advance(shape.rows)
        for key, found in seen.items():
            extremes.setdefault(key, []).append(found)
    return {key: Observed(tuple(found), values[key]) for key, found in extremes.items()}
