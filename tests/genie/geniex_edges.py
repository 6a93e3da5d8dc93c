"""What GenieX graphs have besides keys and values: windows, recurrent states, inputs of every layer.

Each is put into a dense graph of the compiler, so that what it must compute can be said in a few lines.
"""

import json
import re
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.genie.edges import rename

WINDOW = 8  # tokens that the rows of window layers see
WINDOW_LAYERS = (0, 1)
LOCAL_THETA = 500.0
LAYER_FILE = "embed_token_int16_lut.bin"
_LAYER = re.compile(r"layer_(\d+)_")
_ROW_INPUTS = ("attention_mask", "position_ids_cos", "position_ids_sin")


def with_windows(model: onnx.ModelProto, narrow: onnx.ModelProto) -> onnx.ModelProto:
    """The first layers over caches of a window. narrow: the same graph, whose past is as wide as the window."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    layer, nodes = -1, []
    of_rows = set(_ROW_INPUTS)  # what is made of the mask alone, once for all layers
    for wide, other in zip(model.graph.node, narrow.graph.node, strict=True):
        found = next((match for name in wide.input if (match := _LAYER.match(name))), None)
        layer = int(found[1]) if found else layer
        is_of_rows = all(name in of_rows or name.startswith("constant_") for name in wide.input)
        of_rows |= set(wide.output) if is_of_rows else set()
        for node, is_narrow in ((wide, False), (other, True)):
            if is_of_rows or is_narrow == (layer in WINDOW_LAYERS):
                copy = onnx.NodeProto()
                copy.CopyFrom(node)
                if is_narrow:
                    copy.name = f"narrow/{copy.name}"
                    copy.input[:] = [_of_window(name, of_rows) for name in copy.input]
                    copy.output[:] = [_of_window(name, of_rows) for name in copy.output]
                nodes.append(copy)
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    for tensor in narrow.graph.initializer:
        if tensor.name.startswith("constant_"):
            copy = made.graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = f"narrow/{tensor.name}"
    for values, given in ((made.graph.input, narrow.graph.input), (made.graph.output, narrow.graph.output)):
        kept = [value for value in values if _of_window(value.name) == value.name or value.name in _ROW_INPUTS]
        added = []
        for value in given:
            if _of_window(value.name) != value.name:
                copy = onnx.ValueInfoProto()
                copy.CopyFrom(value)
                copy.name = _of_window(value.name)
                added.append(copy)
        del values[:]
        values.extend([*kept, *added])
    return made


def _of_window(name: str, of_rows: Container[str] = ()) -> str:
    if name in _ROW_INPUTS:
        return f"swa_{name}"
    if name.startswith("constant_") or name in of_rows:
        return f"narrow/{name}"
    match = re.fullmatch(r"past_(key|value)_(\d+)_(in|out)", name)
    return name.replace("past_", "swa_") if match and int(match[2]) in WINDOW_LAYERS else name


def with_states(model: onnx.ModelProto, rows: int, hidden: int) -> onnx.ModelProto:
    """A layer 0 that adds to every token a tenth of the one before, and a twentieth of the sum of all up to it.

    conv_state_0: the last token [1, H, 1]; recurrent_state_0: the sum [1, 1, 1, H]. As in Qwen3.5's graphs a row is
    real if it sees itself. The caches of the layers behind are numbered from 1 on.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for value in [*graph.input, *graph.output]:
        match = re.fullmatch(r"past_(key|value)_(\d+)_(in|out)", value.name)
        if match:
            value.name = f"moved/{value.name}"
            rename(graph, value.name.removeprefix("moved/"), value.name)
    for value in [*graph.input, *graph.output]:
        match = re.fullmatch(r"moved/past_(key|value)_(\d+)_(in|out)", value.name)
        if match:
            new = f"past_{match[1]}_{int(match[2]) + 1}_{match[3]}"
            rename(graph, value.name, new)
            value.name = new
    rename(graph, "inputs_embeds", "started")
    for name, array in (
        ("state/eye", np.eye(rows, dtype=np.float32)),
        ("state/until", np.tri(rows, dtype=np.float32)),
        ("state/before", np.eye(rows, k=-1, dtype=np.float32)),
        ("state/zero", np.zeros((), np.float32)),
        ("state/one", np.ones((), np.float32)),
        ("state/tenth", np.array(0.1, np.float32)),
        ("state/twentieth", np.array(0.05, np.float32)),
        ("state/first", np.array([-rows], np.int64)),
        ("state/end", np.array([1 << 40], np.int64)),
        ("state/last", np.array([-1], np.int64)),
        ("state/axis3", np.array([3], np.int64)),
        ("state/axis1", np.array([1], np.int64)),
        ("state/column", np.array([1, rows, 1], np.int64)),
        ("state/row", np.array([1, 1, hidden], np.int64)),
        ("state/four", np.array([1, 1, 1, hidden], np.int64)),
    ):
        graph.initializer.append(numpy_helper.from_array(array, name))
    steps = [
        ("Slice", ["attention_mask", "state/first", "state/end", "state/axis3"], "state/own"),
        ("Equal", ["state/own", "state/zero"], "state/seen"),
        ("Cast", ["state/seen"], "state/seen_float"),
        ("Mul", ["state/seen_float", "state/eye"], "state/diagonal"),
        ("ReduceSum", ["state/diagonal", "state/axis3"], "state/real_rows"),
        ("Reshape", ["state/real_rows", "state/column"], "state/real"),
        ("Mul", ["inputs_embeds", "state/real"], "state/tokens"),
        ("Reshape", ["recurrent_state_0_in", "state/row"], "state/sum_before"),
        ("MatMul", ["state/until", "state/tokens"], "state/sums_here"),
        ("Add", ["state/sums_here", "state/sum_before"], "state/sums"),
        ("Reshape", ["conv_state_0_in", "state/row"], "state/token_before"),
        ("MatMul", ["state/before", "state/tokens"], "state/tokens_before"),
        ("MatMul", ["state/before", "state/real"], "state/has_before"),
        ("Sub", ["state/one", "state/has_before"], "state/lacks_before"),
        ("Mul", ["state/lacks_before", "state/token_before"], "state/carried"),
        ("Add", ["state/tokens_before", "state/carried"], "state/before_all"),
        ("Mul", ["state/before_all", "state/tenth"], "state/tenths"),
        ("Mul", ["state/sums", "state/twentieth"], "state/shares"),
        ("Add", ["inputs_embeds", "state/tenths"], "state/plus"),
        ("Add", ["state/plus", "state/shares"], "started"),
        ("Slice", ["state/sums", "state/last", "state/end", "state/axis1"], "state/sum_after"),
        ("Reshape", ["state/sum_after", "state/four"], "recurrent_state_0_out"),
        ("Slice", ["state/tokens", "state/last", "state/end", "state/axis1"], "state/token_after"),
        ("Transpose", ["state/token_after"], "conv_state_0_out"),
    ]
    more: dict[str, dict[str, Any]] = {
        "Cast": {"to": TensorProto.FLOAT},
        "ReduceSum": {"keepdims": 0},
        "Transpose": {"perm": [0, 2, 1]},
    }
    nodes = [helper.make_node(kind, given, [out], name=out, **more.get(kind, {})) for kind, given, out in steps]
    nodes += list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    for name, shape in (("conv_state_0", [1, hidden, 1]), ("recurrent_state_0", [1, 1, 1, hidden])):
        graph.input.append(helper.make_tensor_value_info(f"{name}_in", TensorProto.FLOAT, shape))
        graph.output.append(helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, shape))
    return made


def with_layer_inputs(model: onnx.ModelProto, rows: int, layers: int, hidden: int) -> onnx.ModelProto:
    """Adds to every token the mean over `per_layer_inputs` [1, N, L, H]."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    rename(graph, "inputs_embeds", "started")
    graph.initializer.append(numpy_helper.from_array(np.array([2], np.int64), "layers/axis"))
    nodes = [
        helper.make_node("ReduceMean", ["per_layer_inputs", "layers/axis"], ["layers/mean"], name="mean", keepdims=0),
        helper.make_node("Add", ["inputs_embeds", "layers/mean"], ["started"], name="start"),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    value = helper.make_tensor_value_info("per_layer_inputs", TensorProto.FLOAT, [1, rows, layers, hidden])
    graph.input.append(value)
    return made


def with_images(model: onnx.ModelProto, rows: int, hidden: int) -> onnx.ModelProto:
    """Adds the sum of `deepstack_visual_embeds_0` [4, H] to the rows that `visual_pos_masks` [1, N] says are images."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    rename(graph, "inputs_embeds", "started")
    for name, array in (("images/axis", [0]), ("images/column", [1, rows, 1])):
        graph.initializer.append(numpy_helper.from_array(np.array(array, np.int64), name))
    nodes = [
        helper.make_node("Cast", ["visual_pos_masks"], ["images/rows"], name="rows", to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["images/rows", "images/column"], ["images/rows_column"], name="column"),
        helper.make_node("ReduceSum", ["deepstack_visual_embeds_0", "images/axis"], ["images/sum"], name="sum"),
        helper.make_node("Mul", ["images/rows_column", "images/sum"], ["images/added"], name="added"),
        helper.make_node("Add", ["inputs_embeds", "images/added"], ["started"], name="start"),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info("visual_pos_masks", TensorProto.BOOL, [1, rows]))
    graph.input.append(helper.make_tensor_value_info("deepstack_visual_embeds_0", TensorProto.FLOAT, [4, hidden]))
    return made


def layer_table(tokens: int, layers: int, hidden: int) -> np.ndarray:
    """float32 [V, L * H]."""
    return np.random.default_rng(5).normal(0, 0.02, (tokens, layers * hidden)).astype(np.float32)


def tell_windows(folder: Path, is_geniex: bool = True) -> None:
    """What qai-hub-models 0.65 writes of layers with windows: their rotation, in one of two ways, and their caches."""
    path = folder / "genie_config.json"
    document = json.loads(path.read_text())
    engine = document["dialog"]["engine"]
    back_end = engine["backend"]["QnnHtp"]
    every = {"type": "rope", "rope-dim": back_end.pop("pos-id-dim"), "rope-theta": back_end.pop("rope-theta")}
    local = {**every, "rope-theta": LOCAL_THETA}
    if is_geniex:
        engine["model"] |= {"positional-encoding": every, "local-positional-encoding": local}
    else:
        engine["model"]["positional-encoding"] = [every, {"prefix": "swa_", **local}]
    window = {"version": 1, "type": "sliding-window", "sliding-window": {"version": 1, "window-size": WINDOW}}
    engine["cache-groups"] = [
        {"version": 1, "prefix": "past_", "attention-mask-tensor-name": "attention_mask"},
        {"version": 1, "prefix": "swa_", "attention-mask-tensor-name": "swa_attention_mask", "longcontext": window},
    ]
    path.write_text(json.dumps(document, indent=1))


def add_layer_table(folder: Path, table: np.ndarray) -> None:
    """The table of what each layer gets, as u16 codes, and its section."""
    scale = float(table.max() - table.min()) / 65535
    offset = round(float(table.min()) / scale)
    np.clip(np.rint(table / scale) - offset, 0, 65535).astype("<u2").tofile(folder / LAYER_FILE)
    path = folder / "genie_config.json"
    document = json.loads(path.read_text())
    document["dialog"]["perlayer-embedding"] = {
        "version": 1,
        "type": "lut",
        "lut-path": LAYER_FILE,
        "size": table.shape[1],
        "datatype": "ufixed16",
        "quant-param": {"scale": scale, "offset": offset},
    }
    path.write_text(json.dumps(document, indent=1))
