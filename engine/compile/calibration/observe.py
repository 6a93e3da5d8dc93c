"""Runs the float graphs on passages and notes the extremes of every activation in each of them.

Smallest and largest values are taken inside the graphs, so that a step gives back three numbers for each tensor
however many rows it has, and two are kept of a passage: token ids [tokens], or rows [tokens, H] for graphs that take
embeddings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from engine.bundle.manifest import GraphSpec, TensorSpec
from engine.bundle.model_spec import ModelSpec
from engine.bundle.tensors import EMBEDS, FLOATS, IDS, MASK, ROTARY, WINDOW_MASK, WINDOW_ROTARY, Array
from engine.bundle.variant import StepShape
from engine.compile.calibration.attention import rotation_tables
from engine.compile.calibration.encodings import Observed, Range
from engine.compile.check.parity import plain_cpu
from engine.compile.graphs.graph_builder import DEQUANTIZE, FloatGraph, WrittenGraph, value_info
from engine.compile.sources.checkpoint import Float32

Passage = NDArray[np.int32] | Float32
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
            form: dict[str, Any] = {} if operator == "Size" else {"keepdims": 0}
            model.graph.node.append(helper.make_node(operator, [name], [output], name=output, **form))
            added.append(TensorSpec(output, dtype, ()))
            model.graph.output.append(value_info(added[-1]))
    return WrittenGraph(model, graph.inputs, (*graph.outputs, *added))


def _gather_codes(model: onnx.ModelProto) -> None:
    """Look up a table's codes and dequantise those found, not the whole table for a few rows of it."""
    nodes = model.graph.node
    tables = {node.output[0]: node for node in nodes if node.op_type == DEQUANTIZE}
    for node in list(nodes):
        table = tables.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None:
            continue
        index, codes = list(nodes).index(node), f"{node.output[0]}_codes"
        parameters = [codes, *table.input[1:]]
        nodes.insert(index + 1, helper.make_node(DEQUANTIZE, parameters, list(node.output), name=codes))
        nodes[index].input[0], nodes[index].output[0] = table.input[0], codes
        nodes.remove(table)


def observe(
    folder: Path,
    graphs: Sequence[GraphSpec],
    model: ModelSpec,
    shape: StepShape,
    passages: Iterable[Passage],
    advance: Callable[[int], None],
) -> dict[str, Observed]:
    """Run passages through observed graphs, part after part; by key. Tokens are told to `advance`. Only full steps are
    run: a row that pads would show values that no real token has."""
    extremes, values = dict[str, list[Range]](), dict[str, int]()
    parts = [(spec, plain_cpu().open(folder / spec.file)) for spec in graphs]
    for passage in passages:
        seen, values, caches = dict[str, Range](), {}, _empty_caches(model, shape)
        for start in range(0, len(passage) - shape.rows + 1, shape.rows):
            known = _row_inputs(model, shape, passage[start : start + shape.rows], start) | caches
            for spec, session in parts:
                names = [tensor.name for tensor in spec.outputs]
                found = session.run(names, {tensor.name: known[tensor.name] for tensor in spec.inputs})
                known |= dict(zip(names, found, strict=True))
            _keep(caches, known, start)
            for key in (name.removeprefix(MOST) for name in known if name.startswith(MOST)):
                span = Range(float(known[LEAST + key]), float(known[MOST + key]))
                seen[key] = seen[key].joined(span) if key in seen else span
                values[key] = values.get(key, 0) + int(known[COUNT + key])
            advance(shape.rows)
        for key, span in seen.items():
            extremes.setdefault(key, []).append(span)
    return {key: Observed(tuple(spans), values[key]) for key, spans in extremes.items()}


def _empty_caches(model: ModelSpec, shape: StepShape) -> dict[str, Array]:
    """Keys [K, 1, D, P] and values [K, 1, P, D] of every layer, by the names of inputs."""
    sizes = {"key": (model.head_dim, shape.past), "value": (shape.past, model.head_dim)}
    names = {f"past_{side}_{layer}_in": size for layer in range(model.layers) for side, size in sizes.items()}
    return {name: np.zeros((model.kv_heads, 1, *size), np.float32) for name, size in names.items()}


def _keep(caches: dict[str, Array], known: Mapping[str, Array], start: int) -> None:
    """Write the columns of a step into the caches from `start` on; behind its last step there is no room."""
    for name, cache in caches.items():
        axis = 2 if "value" in name else 3
        columns, fresh = (np.moveaxis(each, axis, 0) for each in (cache, known[name.replace("_in", "_out")]))
        if start + len(fresh) <= len(columns):
            columns[start : start + len(fresh)] = fresh


def _row_inputs(model: ModelSpec, shape: StepShape, given: Passage, start: int) -> dict[str, Array]:
    """Ids or rows, masks and rotations of a full step that begins at a position."""
    rows, hidden = start + np.arange(shape.rows), FLOATS["float32"]
    mask = np.full((1, 1, shape.rows, shape.context), hidden, np.float32)
    mask[..., :start] = 0
    mask[0, 0, :, shape.past :][np.tri(shape.rows, dtype=bool)] = 0
    behind = np.concatenate([np.arange(shape.past), rows]) <= rows[:, None] - max(model.layer_windows, default=0)
    tables = dict(zip(ROTARY, rotation_tables(model.rope, rows), strict=True))
    if model.local_rope is not None:
        tables |= zip(WINDOW_ROTARY, rotation_tables(model.local_rope, rows), strict=True)
    near = np.where(behind, np.float32(hidden), mask)
    return {
        IDS if given.ndim == 1 else EMBEDS[0]: given[None],
        MASK: mask,
        WINDOW_MASK: near,
        **{name: table[None, None] for name, table in tables.items()},
    }
