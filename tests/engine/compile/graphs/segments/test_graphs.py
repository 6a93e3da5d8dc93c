"""The graphs of a segmented bundle: which there are, their tensors, their nodes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from engine.bundle.check import check_contract, check_listed
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, load_manifest, verify_hashes
from engine.bundle.variant import shape_table
from engine.compile.arguments import Layout, Quant
from engine.compile.graphs.lowering import Lowering
from engine.errors import CompileError

Build = Callable[..., tuple[Path, Manifest]]


def shapes(spec: GraphSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple({tensor.name: tensor.shape for tensor in side} for side in (spec.inputs, spec.outputs))


def test_parts_and_tensors(segmented_bundle: Path) -> None:
    """The contract with the runtime, written out for 2 layers of 4 heads on 2 of 16."""
    manifest = load_manifest(segmented_bundle)
    check_contract(manifest)
    check_listed(manifest)
    specs = {graph.name: graph for graph in manifest.graphs}
    names = [f"linear_{part}_of_3" for part in (1, 2, 3)]
    assert list(specs) == [*names, "attention", "attention_grouped", "attention_base", "attention_masked"]
    hidden, wide, narrow = [1, "rows", 64], (1, "rows", 64), (1, "rows", 32)
    turns = {"position_ids_cos": (1, 1, "rows", 8), "position_ids_sin": (1, 1, "rows", 8)}
    fresh = {"query": wide, "key": narrow, "value": narrow}
    first, middle, last = (specs[name] for name in names)
    assert [(graph.part, graph.parts) for graph in (first, middle, last)] == [(1, 3), (2, 3), (3, 3)]
    assert shapes(first) == ({"input_ids": (1, "rows")} | turns, {"hidden_out": tuple(hidden)} | fresh)
    assert shapes(middle) == (
        {"hidden_in": tuple(hidden), "attended": wide} | turns,
        {"hidden_out": tuple(hidden)} | fresh,
    )
    ends = {"hidden_in": (1, "logit_rows", 64), "attended": (1, "logit_rows", 64)}
    assert shapes(last) == (ends, {"logits": (1, "logit_rows", 384)})
    cache = (1, 2, "columns", 16)
    lengths = {"seqlens_k": (1,), "total_sequence_length": ()}
    attention = specs["attention"]
    assert attention.kind is GraphKind.ATTENTION and (attention.part, attention.parts) == (1, 1)
    assert shapes(attention) == (
        fresh | {"past_key": cache, "past_value": cache} | lengths,
        {"attended": wide, "present_key": cache, "present_value": cache},
    )
    caches = {"past_key": cache, "past_value": cache}
    assert shapes(specs["attention_grouped"]) == (
        {"query": wide, "mask": ("rows", 1, "columns")} | caches,
        {"attended": wide},
    )
    assert all(graph.rows is None and graph.context is None for graph in manifest.graphs)


def test_what_the_manifest_says(segmented_bundle: Path) -> None:
    manifest = load_manifest(segmented_bundle)
    assert manifest.is_segmented and manifest.is_free_shape and shape_table(manifest, 64).free
    assert (manifest.quant, manifest.split) == ("int4", "segments")
    assert manifest.kv_dtype == "float32"
    assert set(manifest.files) == {path.name for path in segmented_bundle.iterdir()} - {"manifest.json"}
    assert verify_hashes(segmented_bundle, manifest) == []


@pytest.mark.parametrize("quant", [Quant.FP32, Quant.INT8, Quant.INT4])
def test_onnx_agrees(quant: Quant, tiny_checkpoint: Path, build: Build) -> None:
    """Operators by their definitions, tensors as the manifest lists them, and none that turns heads."""
    folder, manifest = build(tiny_checkpoint, quant=quant, layout=Layout.SEGMENTS)
    for spec in manifest.graphs:
        onnx.checker.check_model(str(folder / spec.file))
        graph = onnx.load(folder / spec.file, load_external_data=False).graph
        assert [value.name for value in graph.input] == [tensor.name for tensor in spec.inputs]
        assert [value.name for value in graph.output] == [tensor.name for tensor in spec.outputs]
        kinds = {node.op_type for node in graph.node}
        is_masked = spec.name in ("attention_base", "attention_grouped", "attention_masked")
        assert is_masked or not kinds & {"Transpose", "Concat", "Softmax", "DynamicQuantizeLinear"}
        assert ("GroupQueryAttention" in kinds) == (spec.kind is GraphKind.ATTENTION and not is_masked)


def test_nodes_of_a_narrow_pass(segmented_bundle: Path) -> None:
    """Each costs microseconds, for every token of a lone client and every layer."""
    graph = onnx.load(segmented_bundle / "linear_2_of_3.onnx", load_external_data=False).graph
    assert len(graph.node) <= 22


def test_the_embedding_is_stored_once(segmented_bundle: Path) -> None:
    """Norms and the table lie apart from the matrices."""
    located: dict[str, set[str]] = {}
    for path in segmented_bundle.glob("linear_*.onnx"):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            places = {entry.value for entry in tensor.external_data if entry.key == "location"}
            located.setdefault(tensor.name, set()).update(places)
    assert located["embedding"] == located["layer_0_attention_norm"] == located["final_norm"] == {"shared.data"}
    assert located["layer_1_down_weight"] == located["head_weight"] == {"linear.data"}


def test_a_wrong_float_bundle_fails(tiny_checkpoint: Path, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lowering that is wrong cannot produce an fp32 bundle."""
    monkeypatch.setattr(Lowering, "silu", lambda _, graph, x: graph.op("Sigmoid", [x]))
    with pytest.raises(CompileError, match="differ from the checkpoint"):
        build(tiny_checkpoint, quant=Quant.FP32, layout=Layout.SEGMENTS)
