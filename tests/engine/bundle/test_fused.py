"""Names and shapes of fused graphs, and what a manifest may say of them."""

import msgspec
import pytest

from engine.bundle.check import check_contract
from engine.bundle.fused import FusedShape, fused_shape, fused_shapes
from engine.bundle.manifest import GraphSpec, Manifest, load_manifest
from engine.bundle.specs import FusedSpec
from engine.errors import BundleError
from tests.bundles import Bundles


@pytest.mark.parametrize(
    ("name", "rows", "slots", "caches"),
    [
        ("model.0.s1", 1, 1, ("decode",)),
        ("model.0.pd.s32", 32, 1, ("prefill", "decode")),
        ("model.0.pd.s128", 128, 1, ("prefill", "decode")),
        ("model.0.d4", 4, 4, ("decode0", "decode1", "decode2", "decode3")),
        ("model.0.pd.s64.d2", 64, 2, ("prefill", "decode0", "decode1")),
    ],
)
def test_names_say_rows_and_slots(name: str, rows: int, slots: int, caches: tuple[str, ...]) -> None:
    shape = fused_shape(name)
    assert shape == FusedShape(rows, slots)
    assert (shape.name, shape.caches) == (name, caches)


@pytest.mark.parametrize(
    "name", ["model.0.s2", "model.0.pd.s8.d1", "model.0.pd.s4.d8", "model.0.d1", "ar32_cl64_1_of_1"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        fused_shape(name)


def test_a_bundle_has_a_graph_for_every_kind_of_step() -> None:
    names = [shape.name for shape in fused_shapes(FusedSpec((32, 128), (28, 124), 4, 896))]
    assert names == ["model.0.s1", "model.0.d4", "model.0.pd.s32.d4", "model.0.pd.s128.d4"]
    one_slot = [shape.name for shape in fused_shapes(FusedSpec((32, 64, 128), (31, 63, 127), 1, 896))]
    assert one_slot == ["model.0.s1", "model.0.pd.s32", "model.0.pd.s64", "model.0.pd.s128"]


def test_the_manifest_tells_total_and_prefill_lengths(bundles: Bundles) -> None:
    text = (bundles("fused") / "manifest.json").read_bytes()
    fields = msgspec.json.decode(text)["fused"]
    assert fields == {
        "pd_total_len": [8, 16],
        "pd_prefill_len": [7, 15],
        "decode_slots": 1,
        "past": 65,
        "kv_update_on_device": True,
    }
    manifest = load_manifest(bundles("fused 3"))
    assert manifest.fused == FusedSpec((8, 16), (5, 13), 3, 65, True)


def test_tensors_are_those_of_the_contract_in_its_order(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("fused"))
    graph = next(graph for graph in manifest.graphs if graph.name == "model.0.pd.s16")
    layers = range(manifest.model.layers)
    caches = [
        f"past_{side}_{cache}_{layer}"
        for cache in ("prefill", "decode")
        for side in ("key", "value")
        for layer in layers
    ]
    rows = ["input_ids", "position_ids_cos", "position_ids_sin", "attention_mask", "fusion_ctrl"]
    assert [tensor.name for tensor in graph.inputs] == [*rows, *caches]
    forms = {tensor.name: (tensor.dtype, tensor.shape) for tensor in (*graph.inputs, *graph.outputs)}
    assert forms["input_ids"] == ("int32", (1, 16))
    assert forms["attention_mask"] == ("uint16", (1, 1, 16, 65 + 16))
    assert forms["fusion_ctrl"] == ("int32", (6,))
    assert forms["logits"] == ("float32", (1, 2, manifest.model.vocab))
    heads, size = manifest.model.kv_heads, manifest.model.head_dim
    assert forms["past_key_decode_0"][1] == forms["updated_past_key_decode_0"][1] == (heads, 1, size, 65)
    assert forms["present_value_0"][1] == (heads, 1, 16, size)
    assert {f"updated_{name}" for name in caches} <= forms.keys()


def changed(manifest: Manifest, **fields: object) -> Manifest:
    return msgspec.structs.replace(manifest, **fields)


def with_graph(manifest: Manifest, **fields: object) -> Manifest:
    first: GraphSpec = msgspec.structs.replace(manifest.graphs[0], **fields)
    return changed(manifest, graphs=(first, *manifest.graphs[1:]))


def test_a_manifest_that_says_something_else_is_refused(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("fused"))
    check_contract(manifest)
    spec, first = manifest.fused, manifest.graphs[0]
    assert spec is not None
    wrong = [
        (changed(manifest, graphs=manifest.graphs[1:]), "has the graphs"),
        (changed(manifest, fused=msgspec.structs.replace(spec, pd_prefill_len=(8, 15))), "pd_prefill_len"),
        (changed(manifest, fused=msgspec.structs.replace(spec, past=60)), r"1 rows and a context of 66"),
        (with_graph(manifest, inputs=first.inputs[1:]), r"lacks the inputs \['input_ids'\]"),
        (with_graph(manifest, outputs=first.outputs[:-1]), r"lacks the outputs \['updated_past_value_decode_\d'\]"),
        (
            with_graph(manifest, inputs=(msgspec.structs.replace(first.inputs[0], dtype="int64"), *first.inputs[1:])),
            "input_ids",
        ),
    ]
    for bad, words in wrong:
        with pytest.raises(BundleError, match=words):
            check_contract(bad)
    outputs = tuple(
        msgspec.structs.replace(tensor, dtype="float16") if tensor.name == "present_key_0" else tensor
        for tensor in first.outputs
    )
    with pytest.raises(BundleError, match="present_key_0"):
        check_contract(with_graph(manifest, outputs=outputs))
