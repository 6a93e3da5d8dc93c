"""Fused graphs as they are written: names of tensors, families, integers, one file of weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

from engine.bundle.check import check_contract
from engine.bundle.fused import fused_shape, shape_for
from engine.bundle.manifest import DiffusionSpec, GraphKind, Manifest, load_manifest
from engine.bundle.variant import StepShape
from engine.compile.arguments import CompileArguments, KvUpdate, Layout, Quant
from engine.compile.graphs.fused import build_fused_graph, twin_of
from engine.compile.graphs.lowering import NPU
from engine.compile.graphs.pool import GraphPlan, build_graph
from engine.compile.pipeline import compile_bundle
from engine.compile.plan import whole_part
from engine.compile.progress import SilentProgress
from engine.compile.quantisation.packed import PackedPart
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import SafetensorsCheckpoint, read_json
from engine.errors import BundleError, CompileError
from engine.models.family import read_network
from engine.models.network import Network
from tests.bundles import Bundles
from tests.engine.compile.graphs.integer.test_families import FAMILIES
from tests.engine.runtime.fused.steps import HandSteps, opened
from tests.engine.runtime.fused.test_runtime import greedy

PROMPT = (5, 17, 99, 123, 77, 42, 7, 11, 200, 31, 8)
FUSED: dict[str, Any] = {"layout": Layout.FUSED, "rows": (8, 16), "same_past": (65,), "decode_slots": 2}


def test_graphs_of_one_bundle_share_their_weights(bundles: Bundles) -> None:
    folder = bundles("fused")
    manifest = load_manifest(folder)
    assert [graph.name for graph in manifest.graphs] == ["model.0.s1", "model.0.pd.s8", "model.0.pd.s16"]
    assert {graph.kind for graph in manifest.graphs} == {GraphKind.FUSED}
    read = set()
    for graph in manifest.graphs:
        model = onnx.load(str(folder / graph.file), load_external_data=False)
        onnx.checker.check_model(str(folder / graph.file))
        stored = [tensor for tensor in model.graph.initializer if tensor.external_data]
        assert stored
        read |= {entry.value for tensor in stored for entry in tensor.external_data if entry.key == "location"}
    assert read == {"part_1_of_1.data"}


def packed_checkpoint(source: Path, folder: Path) -> tuple[PackedPart, Network]:
    arguments = CompileArguments(source, folder, quant=Quant.W8A16, rows=(16,), same_past=(65,))
    network = read_network(read_json(source / "config.json"), 65)
    with SafetensorsCheckpoint(source) as checkpoint, WeightFile(folder, "weights.data") as file:
        packer = WeightPacker(checkpoint, network, arguments, lambda count: None)
        return packer.pack(whole_part(network), file, file), network


@pytest.mark.parametrize("slots", [1, 3])
def test_every_tensor_stands_for_one_of_the_row_graph(tiny_checkpoint: Path, tmp_path: Path, slots: int) -> None:
    """Otherwise it would get the encoding of something else: the same operator made both."""
    packed, network = packed_checkpoint(tiny_checkpoint, tmp_path)
    part, shape = whole_part(network), StepShape(16, 65)
    row = build_graph(GraphPlan("row", part, StepShape(64, 192)), packed, network, NPU, "float32").model("row")
    kinds = {name: node.op_type for node in row.graph.node for name in node.output}
    plan = GraphPlan(shape_for(shape.rows, slots).name, part, shape)
    builder = build_fused_graph(plan, packed, network, NPU, "float32", has_mask_codes=False)
    model = builder.model(plan.name)
    assert len({name for node in model.graph.node for name in node.output}) == sum(
        len(node.output) for node in model.graph.node
    )
    own = [node for node in model.graph.node if not node.name.startswith("moved_")]
    found = {twin_of(name): node.op_type for node in own for name in node.output}
    assert found == kinds  # every tensor of the row graph, and no other
    moved = [node for node in model.graph.node if node.name.startswith("moved_")]
    assert {node.op_type for node in moved} == {"Slice", "Reshape", "Concat"}
    for node in moved:
        twins = {twin_of(name) for name in (*node.output, node.input[0])}
        assert len(twins) == 1, f"{node.name} moves {twins}"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", [Quant.FP32, Quant.W8A16])
def test_families(
    family: str,
    quant: Quant,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
) -> None:
    """Biases, partial rotation, untied heads; the compiler compares with the checkpoint in steps of every kind."""
    _, source = make_oracle(family, **FAMILIES[family])
    _, manifest = build(source, quant=quant, parity_tokens=24, **FUSED)
    assert manifest.parity["tokens"] >= 20
    assert manifest.parity["relative_error"] < (1e-5 if quant is Quant.FP32 else 0.2)
    assert manifest.parity["top1"] >= (1.0 if quant is Quant.FP32 else 0.7)


@pytest.fixture(scope="module")
def integers(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights as row graphs and as fused ones, w8a16."""
    folder = tmp_path_factory.mktemp("integers")
    layouts: dict[str, dict[str, Any]] = {
        "row": {"layout": Layout.POOL, "rows": (1, 8, 16), "same_past": (96,)},
        "graph": FUSED,
        "host": FUSED | {"kv_update": KvUpdate.HOST},
    }
    for name, options in layouts.items():
        arguments = CompileArguments(tiny_checkpoint, folder / name, quant=Quant.W8A16, parity_tokens=24, **options)
        compile_bundle(arguments, SilentProgress())
    return {name: folder / name for name in layouts}


def test_integer_graphs_have_the_codes_of_the_contract(integers: dict[str, Path]) -> None:
    manifest = load_manifest(integers["graph"])
    for graph in manifest.graphs:
        specs = {tensor.name: tensor for tensor in (*graph.inputs, *graph.outputs)}
        assert specs["attention_mask"].dtype == "uint16" and specs["attention_mask"].zero_point == 65535
        assert specs["logits"].dtype == "uint16"
        cache = fused_shape(graph.name).caches[-1]
        names = (f"past_key_{cache}_1", f"updated_past_key_{cache}_1", "present_key_1")
        assert {(specs[name].dtype, specs[name].zero_point, specs[name].scale) for name in names} == {
            ("uint8", 128, specs["present_key_1"].scale)
        }
    assert "fusion_ctrl" not in {tensor.name for tensor in load_manifest(integers["host"]).graphs[0].inputs}


def test_integer_graphs_give_the_tokens_of_the_row_graph(integers: dict[str, Path]) -> None:
    row = greedy(str(integers["row"]), 4)
    assert greedy(str(integers["graph"]), 4) == row
    assert greedy(str(integers["host"]), 4) == row


def test_integer_caches_are_equal_however_they_are_updated(integers: dict[str, Path]) -> None:
    found = []
    for name, by_graph in (("graph", True), ("graph", False), ("host", False)):
        with opened(lambda _, name=name: integers[name], name, by_graph) as runtime:  # type: ignore[misc]
            steps = HandSteps(runtime)
            steps.run(16, (0, PROMPT))
            steps.run(8, (1, PROMPT[:5]), (0, (3,)))
            steps.run(2, (1, (9,)), (0, (4,)))
            found.append([steps.computed(number) for number in range(2)])
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            assert all((mine[side] == theirs[side]).all() for side in range(2))


def test_a_layer_that_is_stored_in_two_ways_is_refused(integers: dict[str, Path]) -> None:
    manifest = load_manifest(integers["graph"])
    check_contract(manifest)
    last = manifest.graphs[-1]
    outputs = tuple(
        msgspec.structs.replace(tensor, scale=2 * (tensor.scale or 1.0)) if tensor.name == "present_value_1" else tensor
        for tensor in last.outputs
    )
    other = msgspec.structs.replace(
        manifest, graphs=(*manifest.graphs[:-1], msgspec.structs.replace(last, outputs=outputs))
    )
    with pytest.raises(BundleError, match="stores present_value_1 in another way than past_value_decode_1 is stored"):
        check_contract(other)


@pytest.mark.parametrize("quant", [Quant.INT8, Quant.INT4])
def test_every_storage_of_the_cpu(
    tiny_checkpoint: Path, build: Callable[..., tuple[Path, Manifest]], quant: Quant
) -> None:
    """The head has fewer rows than the layers: nothing that was made for all of them may serve it."""
    _, fused = build(tiny_checkpoint, quant=quant, **FUSED)
    _, row = build(tiny_checkpoint, quant=quant)
    assert fused.parity["kl"] < 3 * row.parity["kl"] + 1e-3


@pytest.mark.parametrize("layout", ["fused", "fused 3"])
def test_a_graph_changes_the_columns_that_its_control_names_and_the_last_one(bundles: Bundles, layout: str) -> None:
    """Of slots that hold nothing the last column only, whatever their past is said to be."""
    with opened(bundles, layout, True) as runtime:
        for graph in runtime._graphs.values():
            slots, labels = graph.shape.slots, graph.shape.caches
            caches = [runtime._caches.take() for _ in labels]
            control = graph.inputs["fusion_ctrl"].reshape(-1)
            for active, wanted in ((0, 0), (1, 3), (slots, 2)):
                prompt = min(wanted, graph.shape.prefill_rows)
                control[...] = [prompt > 0, active, prompt, 0, 7, *range(20, 20 + slots)]
                for number, cache in enumerate(caches, 1):
                    cache.keys[...] = cache.values[...] = number
                graph.run(caches, True)
                for number, (label, cache) in enumerate(zip(labels, caches, strict=True), 1):
                    slot = int(label.removeprefix("decode") or 0) if label != "prefill" else -1
                    named = range(7, 7 + prompt) if slot < 0 else [20 + slot] * (slot >= slots - active)
                    changed = (cache.keys != number).any(axis=(0, 1, 2, 3)).nonzero()[0].tolist()
                    assert set(named) <= set(changed) <= {*named, 64}
                    changed = (cache.values != number).any(axis=(0, 1, 2, 4)).nonzero()[0].tolist()
                    assert set(named) <= set(changed) <= {*named, 64}


def test_models_that_denoise_blocks_are_refused(tiny_checkpoint: Path, bundles: Bundles) -> None:
    diffusion = DiffusionSpec(4, 5)
    network = read_network(read_json(tiny_checkpoint / "config.json"), 65)
    other = replace(network, details=replace(network.details, diffusion=diffusion))
    with pytest.raises(CompileError, match="--layout fused decodes token by token: qwen3 denoises blocks"):
        whole_part(other)
    manifest = msgspec.structs.replace(load_manifest(bundles("fused")), diffusion=diffusion)
    with pytest.raises(BundleError, match="this model denoises blocks of them"):
        check_contract(manifest)
