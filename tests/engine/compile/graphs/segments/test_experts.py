"""The nodes of a layer with experts against their definition, for every way of choosing and every storage."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import GraphKind
from engine.bundle.segments import EXPERTS
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.calibration.forward import mixed_by_experts
from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.graphs.experts import grouped, routed
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import FUSED, linear
from engine.compile.graphs.pool import one_part
from engine.compile.quantisation.methods.integer_blocks import int4_blocks, int8_blocks
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Float32, SafetensorsCheckpoint, read_json
from engine.models.experts import ClippedSwiglu, GroupScore, RouterScore, Routing
from engine.models.family import read_network
from engine.models.network import Activation, Network

MakeOracle = Callable[..., tuple[Any, Path]]
SIZES = {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 1}
BIAS = "model.layers.{layer}.mlp.choice_bias"
ROUTINGS = {
    "shares-of-the-chosen": Routing(),
    "shares-of-all": Routing(is_normalised=False, scale=2.5),
    "sigmoid": Routing(RouterScore.SIGMOID, is_normalised=False),
    "best-groups": Routing(groups=4, kept_groups=2),
    "best-two-of-groups": Routing(RouterScore.SIGMOID, True, 1.8, 2, 1, GroupScore.BEST_TWO),
}


def rounded(weight: Float32, quant: Quant, asymmetric: bool) -> Float32:
    if quant is Quant.INT4:
        return int4_blocks(weight, 32, asymmetric).floats()[:, : weight.shape[1]]
    return int8_blocks(weight, weight.shape[1]).floats() if quant is Quant.INT8 else weight


def described(source: Path, routing: Routing, **changes: object) -> Network:
    """The network as config.json has it, with other experts."""
    network = read_network(read_json(source / "config.json"))
    assert network.details.experts is not None
    experts = replace(network.details.experts, routing=routing, **changes)  # type: ignore[arg-type]
    return replace(network, details=replace(network.details, experts=experts))


def rows_of(arguments: CompileArguments, network: Network, folder: Path, x: Float32) -> tuple[Float32, Float32, Any]:
    """Of the graph: what the experts make of x [1, N, hidden], the router's outputs, and who was chosen."""
    with SafetensorsCheckpoint(arguments.source) as checkpoint, WeightFile(folder, "weights.bin") as file:
        packer = WeightPacker(checkpoint, network, arguments, lambda _: None)
        experts = packer.pack(one_part(GraphKind.LINEAR, 1), file, file).layers[0].experts
    assert experts is not None and network.details.experts is not None
    graph = GraphBuilder("float32", None)
    graph.add_input("x", "float32", 1, "rows", network.spec.hidden)
    # The operator may write over its input when nothing else reads it.
    normed = graph.op("Mul", ["x", graph.real(1.0)])
    outputs = linear(graph, normed, experts.router)
    writer, details = LayerWriter(graph, FUSED, network), network.details.experts
    if network.details.activation is Activation.GATED_SILU:
        mixed = routed(graph, normed, outputs, experts, details, "rows")
    else:
        mixed = grouped(graph, normed, outputs, experts, details, writer.activated, "rows")
    graph.op("Mul", [mixed, graph.real(1.0)], name="y")
    graph.add_output("y", "float32", 1, "rows", network.spec.hidden)
    graph.add_output(outputs, "float32", 1, "rows", experts.router.matrix.outputs)
    (folder / "g.onnx").write_bytes(graph.model("g").SerializeToString())
    session = ort.InferenceSession(str(folder / "g.onnx"), providers=["CPUExecutionProvider"])
    found, routing, chosen = session.run(["y", outputs, EXPERTS], {"x": x})
    return found[0], routing[0], chosen


QUANTS = [(Quant.FP32, False), (Quant.INT8, False), (Quant.INT4, False), (Quant.INT4, True)]


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
@pytest.mark.parametrize(("quant", "asymmetric"), QUANTS)
def test_rows_are_those_of_the_definition(
    quant: Quant, asymmetric: bool, routing: Routing, make_oracle: MakeOracle, tmp_path: Path
) -> None:
    """Products round rows to 8 bits where weights are rounded; the definition reads the weights as they are stored."""
    _, source = make_oracle("Qwen3Moe", **SIZES)
    tensors = load_file(source / "model.safetensors")
    tensors[BIAS.format(layer=0)] = np.linspace(-0.2, 0.2, 8, dtype=np.float32)
    save_file(tensors, source / "model.safetensors")
    changes: dict[str, object] = {}
    network = described(source, routing)
    assert network.details.experts is not None
    if routing.score is RouterScore.SIGMOID:
        changes = {
            "names": replace(network.details.experts.names, choice_bias=BIAS),
            "clipped": ClippedSwiglu(1.702, 0.5),
        }
    compare(
        described(source, routing, **changes), CompileArguments(source, tmp_path, quant=quant, asymmetric=asymmetric)
    )


@pytest.mark.parametrize(("quant", "asymmetric"), QUANTS)
def test_rows_that_gelu_gates_are_those_of_the_definition(
    quant: Quant, asymmetric: bool, make_oracle: MakeOracle, tmp_path: Path
) -> None:
    """Some experts have no row."""
    _, source = make_oracle("Qwen3Moe", **(SIZES | {"num_experts": 24}))
    network = described(source, Routing())
    network = replace(network, details=replace(network.details, activation=Activation.GATED_GELU_TANH))
    compare(network, CompileArguments(source, tmp_path, quant=quant, asymmetric=asymmetric))


def compare(network: Network, arguments: CompileArguments) -> None:
    """The graph of the first layer, stored so, with the definition on the numbers that are then stored."""
    source, quant = arguments.source, arguments.quant
    tensors = load_file(source / "model.safetensors")
    x = np.random.default_rng(1).normal(size=(1, 9, network.spec.hidden)).astype(np.float32)
    found, outputs, chosen = rows_of(arguments, network, arguments.output, x)
    stored = {
        name: rounded(value, quant, arguments.asymmetric) if ".experts." in name else value
        for name, value in tensors.items()
    }
    save_file(stored, source / "model.safetensors")
    with SafetensorsCheckpoint(source) as checkpoint:
        expected = mixed_by_experts(LayerReader(checkpoint, network, 0), x[0], outputs)
    assert chosen.shape == (1, 9, 2)
    assert np.abs(found - expected).max() < (1e-5 if quant is Quant.FP32 else 0.03) * np.abs(expected).max()
