"""Writes Genie folders that keep the contract exactly, from a small checkpoint: every era's names, splits and types.

The network is computed in floating point; quantised tensors exist at the graphs' edges, where the contract is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.bundle.manifest import GraphKind, TensorSpec
from engine.bundle.variant import PassShape
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.checkpoint import Checkpoint, read_json
from engine.compile.graphs import GraphPlan, build_graph
from engine.compile.lowering import PLAIN
from engine.compile.packed import PackedPart
from engine.compile.parts import PartPlan
from engine.compile.weight_file import WeightFile
from engine.compile.weights import WeightPacker
from engine.models.family import read_network
from engine.models.network import Network

EMBEDDED = "_model_embed_tokens_Gather_Gather_output_0"


@dataclass(frozen=True)
class Encoding:
    """real = scale * (q - zero_point)."""

    dtype: str
    scale: float
    zero_point: int


@dataclass(frozen=True)
class Source:
    """A checkpoint's network with its weights packed for each part."""

    network: Network
    parts: tuple[PartPlan, ...]
    packed: tuple[PackedPart, ...]
    folder: Path


def cut(layers: int, parts: int, head_alone: bool) -> tuple[PartPlan, ...]:
    """Part 1 is the embedding, the layers are spread over the others, the head is in the last part or is the last."""
    decoders = parts - 1 - head_alone
    assert decoders >= 1
    edges = [round(index * layers / decoders) for index in range(decoders + 1)]
    plans = [PartPlan(1, parts, GraphKind.LUT, True, range(0), False, "input_ids", EMBEDDED)]
    for number in range(decoders):
        span = range(edges[number], edges[number + 1])
        last = number == decoders - 1 and not head_alone
        result = "logits" if last else f"_model_model_layers_{span[-1]}_Add_1_output_0"
        plans.append(PartPlan(number + 2, parts, GraphKind.DECODER, False, span, last, plans[-1].result, result))
    if head_alone:
        plans.append(PartPlan(parts, parts, GraphKind.LMHEAD, False, range(0), True, plans[-1].result, "logits"))
    return tuple(plans)


def pack(checkpoint: Path, folder: Path, parts: tuple[PartPlan, ...]) -> Source:
    """Write every part's weights into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    network = read_network(read_json(checkpoint / "config.json"), 0)
    arguments = CompileArguments(checkpoint, folder, quant=Quant.FP32)
    packed = []
    with Checkpoint(checkpoint) as weights:
        packer = WeightPacker(weights, network, arguments, lambda _: None)
        for part in parts:
            with WeightFile(folder, part.data_file) as file:
                packed.append(packer.pack(part, file))
    return Source(network, parts, tuple(packed), folder)


def part_model(source: Source, number: int, shape: PassShape, dtype: str, name: str) -> onnx.ModelProto:
    """One part as a floating point model of one shape, its weights inside."""
    plan = GraphPlan(name, source.parts[number - 1], shape)
    model = build_graph(plan, source.packed[number - 1], source.network, PLAIN, dtype).model(name)
    onnx.external_data_helper.load_external_data_for_model(model, str(source.folder))
    return model


def encode_edges(model: onnx.ModelProto, encodings: Mapping[str, Encoding]) -> onnx.ModelProto:
    """Give the named inputs and outputs their integer types; the graph between them stays as it is."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, before, after = made.graph, [], []
    for value in [*graph.input, *graph.output]:
        encoding = encodings.get(value.name)
        if encoding is None:
            continue
        integer = np.dtype(encoding.dtype)
        real = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        scale, zero, inner = f"{value.name}/scale", f"{value.name}/zero", f"{value.name}/real"
        graph.initializer.append(numpy_helper.from_array(np.array(encoding.scale, real), scale))
        graph.initializer.append(numpy_helper.from_array(np.array(encoding.zero_point, integer), zero))
        is_input = any(value.name == item.name for item in graph.input)
        _rename(graph, value.name, inner)
        if is_input:
            before.append(helper.make_node("DequantizeLinear", [value.name, scale, zero], [inner], name=f"{inner}/dq"))
        else:
            after.append(helper.make_node("QuantizeLinear", [inner, scale, zero], [value.name], name=f"{inner}/q"))
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(integer)
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    return made


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
