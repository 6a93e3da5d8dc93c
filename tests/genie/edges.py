"""Turns floating point parts into ones with the contract's integer tensors, and concat caches into scatter caches."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from engine.bundle.variant import StepShape

MASK_DEPTH = 100.0
HEAD = re.compile(r"_h(?:ead_)?\d+(?=_(?:in|out)$)")


@dataclass(frozen=True)
class EdgeEncoding:
    """real = scale * (q - zero_point)."""

    dtype: str
    scale: float
    zero_point: int


FIXED = {
    "attention_mask": EdgeEncoding("uint16", MASK_DEPTH / 65535, 65535),
    "position_ids_cos": EdgeEncoding("uint16", 2 / 65535, 32768),
    "position_ids_sin": EdgeEncoding("uint16", 2 / 65535, 32768),
}


def calibrate(
    models: Sequence[onnx.ModelProto], shape: StepShape, table: np.ndarray, logits: str, caches: str
) -> dict[str, EdgeEncoding]:
    """Run the parts on random rows of a table [V, H]: every tensor gets an encoding that holds what was seen."""
    generator = np.random.default_rng(1)
    angles = np.arange(shape.rows)[:, None] * 0.1
    values: dict[str, np.ndarray] = {"input_ids": generator.integers(3, len(table), (1, shape.rows)).astype(np.int32)}
    values["inputs_embeds"] = table[values["input_ids"]]
    values["attention_mask"] = np.full((1, 1, shape.rows, shape.context), -MASK_DEPTH, np.float32)
    values["attention_mask"][0, 0, :, shape.past :] = np.where(np.tri(shape.rows), 0, -MASK_DEPTH)
    found = {**FIXED, "inputs_embeds": _encoding("uint16", table)}
    for model in models:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for item in session.get_inputs():
            if item.name.startswith("position"):
                turn = np.cos if item.name.endswith("cos") else np.sin
                values[item.name] = np.broadcast_to(turn(angles), item.shape).astype(np.float32)
            elif item.name.startswith("past_"):
                values[item.name] = np.zeros(item.shape, np.float32)
        names = [item.name for item in session.get_outputs()]
        results = session.run(names, {item.name: values[item.name] for item in session.get_inputs()})
        for name, result in zip(names, results, strict=True):
            values[name] = result
            kind = caches if name.startswith("past_") else logits if name == "logits" else "uint16"
            found[name] = _encoding(kind, result)
            if name.startswith("past_"):
                found[name.replace("_out", "_in")] = found[name]
    return found


def _encoding(dtype: str, seen: np.ndarray) -> EdgeEncoding:
    peak = 1.5 * float(np.abs(seen).max())
    half = 127 if dtype == "uint8" else 32767
    return EdgeEncoding(dtype, peak / half, half + 1)


def encode_edges(model: onnx.ModelProto, encodings: Mapping[str, EdgeEncoding]) -> onnx.ModelProto:
    """Give the named inputs and outputs their integer types; the graph between them stays as it is."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, before, after = made.graph, [], []
    inputs = {value.name for value in graph.input}
    for value in [*graph.input, *graph.output]:
        encoding = encodings.get(HEAD.sub("", value.name))
        if encoding is None:
            continue
        integer = np.dtype(encoding.dtype)
        real = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        scale, zero, inner = f"{value.name}/scale", f"{value.name}/zero", f"{value.name}/real"
        graph.initializer.append(numpy_helper.from_array(np.array(encoding.scale, real), scale))
        graph.initializer.append(numpy_helper.from_array(np.array(encoding.zero_point, integer), zero))
        rename(graph, value.name, inner)
        if value.name in inputs:
            before.append(helper.make_node("DequantizeLinear", [value.name, scale, zero], [inner], name=f"{inner}/dq"))
        else:
            after.append(helper.make_node("QuantizeLinear", [inner, scale, zero], [value.name], name=f"{inner}/q"))
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(integer)
    _put_around(graph, before, after)
    return made


def drop_result(model: onnx.ModelProto) -> None:
    """Leave keys and values as the only outputs."""
    graph = model.graph
    kept = [value for value in graph.output if value.name.startswith("past_")]
    del graph.output[:]
    graph.output.extend(kept)


def scatter_edges(model: onnx.ModelProto, shape: StepShape, index: str = "int32") -> onnx.ModelProto:
    """Caches as wide as the context, the fresh columns at `cache_index`: other columns and the mask are turned round.

    Turned by cache_index + rows, the fresh columns come last, which is where the concat graph has them.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, before = made.graph, []
    if not any(value.name == "attention_mask" for value in graph.input):
        return made
    columns, past = shape.context, shape.past
    for name, value in (
        ("scatter/columns", np.arange(columns, dtype=np.int32)),
        ("scatter/rows", np.array(shape.rows, np.int32)),
        ("scatter/count", np.array(columns, np.int32)),
        ("scatter/zero", np.array([0], np.int64)),
        ("scatter/past", np.array([past], np.int64)),
    ):
        graph.initializer.append(numpy_helper.from_array(value, name))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(index))
    graph.input.append(helper.make_tensor_value_info("cache_index", element, [1]))
    before.append(
        helper.make_node("Cast", ["cache_index"], ["scatter/index"], name="scatter/cast", to=TensorProto.INT32)
    )
    steps = (
        ("Add", ["scatter/index", "scatter/rows"], "scatter/shift"),
        ("Add", ["scatter/columns", "scatter/shift"], "scatter/sum"),
        ("Mod", ["scatter/sum", "scatter/count"], "scatter/turned"),
        ("Slice", ["scatter/turned", "scatter/zero", "scatter/past"], "scatter/others"),
    )
    before += [helper.make_node(kind, inputs, [output], name=output) for kind, inputs, output in steps]
    for value in graph.input:
        if value.name == "attention_mask":
            before.append(_turned(graph, value.name, "scatter/turned", 3))
        elif value.name.startswith("past_"):
            axis = 3 if "key" in value.name else 2
            before.append(_turned(graph, value.name, "scatter/others", axis))
            value.type.tensor_type.shape.dim[axis].dim_value = columns
    _put_around(graph, before, [])
    for value in [*graph.input, *graph.output]:
        if value.name.startswith("past_"):
            new = value.name.replace("past_", "past_nativekvcache__")
            rename(graph, value.name, new)
            value.name = new
    return made


def split_heads(model: onnx.ModelProto, infix: str) -> onnx.ModelProto:
    """One tensor for each head of a cache, as `past_key_0` + infix + `1_in`; the graph inside stays as it is."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, before, after = made.graph, [], []
    for values, is_input in ((graph.input, True), (graph.output, False)):
        joined = [value for value in values if value.name.startswith("past_")]
        for value in joined:
            stem, _, side = value.name.rpartition("_")
            heads, *dims = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
            names = [f"{stem}{infix}{head}_{side}" for head in range(heads)]
            element = value.type.tensor_type.elem_type
            values.remove(value)
            values.extend(helper.make_tensor_value_info(name, element, [1, *dims]) for name in names)
            label = f"{stem}/{side}"
            if is_input:
                before.append(helper.make_node("Concat", names, [value.name], name=label, axis=0))
            else:
                after.append(helper.make_node("Split", [value.name], names, name=label, axis=0, num_outputs=heads))
    _put_around(graph, before, after)
    return made


def _turned(graph: onnx.GraphProto, name: str, index: str, axis: int) -> onnx.NodeProto:
    rename(graph, name, f"{name}/turned")
    return helper.make_node("Gather", [name, index], [f"{name}/turned"], name=f"{name}/turn", axis=axis)


def rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Rename a value wherever nodes use it."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _put_around(graph: onnx.GraphProto, before: Sequence[onnx.NodeProto], after: Sequence[onnx.NodeProto]) -> None:
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
