"""Manifests that contradict themselves."""

import msgspec
import pytest

from engine.bundle.check import check_contract, check_listed
from engine.bundle.manifest import Manifest, load_manifest
from engine.errors import BundleError
from tests.bundles import Bundles
from tests.engine.graphs.test_onnx_qnn import TWO, bundle


def changed(**model: object) -> Manifest:
    made = bundle(TWO)
    return msgspec.structs.replace(made, model=msgspec.structs.replace(made.model, **model))


def with_graph(**graph: object) -> Manifest:
    made = bundle(TWO)
    return msgspec.structs.replace(made, graphs=(msgspec.structs.replace(made.graphs[0], **graph),))


def test_one_that_does_not() -> None:
    check_contract(bundle(TWO))


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (with_graph(rows=4), r"input input_ids is int32 \[1, 1\] in the manifest, .* want int32 \[4\]"),
        (with_graph(context=128), r"past_key_0_in is float16 \[2, 1, 16, 63\].*want float16 \[2, 16, 127\]"),
        (bundle(TWO, kv_dtype="uint8"), r"past_key_0_in is float16 .* want uint8"),
        (bundle(TWO, kv_dtype="bogus"), r"past_key_0_in is float16 .* want bogus"),
        (changed(head_dim=8), r"past_key_0_in .* want float16 \[2, 8, 63\]"),
        (changed(kv_heads=1), r"past_key_0_in .* want float16 \[1, 16, 63\]"),
        (changed(vocab=100), r"output logits is float16 \[1, 1, 300\] .* want numbers \[1, 100\]"),
        (changed(layers=2), r"has caches of layers 0, the manifest says that the model has 2"),
    ],
)
def test_those_that_do(manifest: Manifest, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        check_contract(manifest)


def test_graphs_of_free_shapes(bundles: Bundles) -> None:
    for layout in ("free", "none", "lut", "fixed", "same past"):
        check_contract(load_manifest(bundles(layout)))
    manifest = load_manifest(bundles("free"))
    for changes, message in (
        ({"head_dim": 32}, r"past_key_0_in is float32 \[2, 1, 16, 'past'\] in the manifest, .* \[2, 32, 'past'\]"),
        ({"vocab": 1 << 20}, r"logits .* want numbers \['logit_rows', 1048576\]"),
        ({"layers": 3}, "has caches of layers 0, 1, the manifest says that the model has 3"),
    ):
        model = msgspec.structs.replace(manifest.model, **changes)
        with pytest.raises(BundleError, match=message):
            check_contract(msgspec.structs.replace(manifest, model=model))


def test_a_graph_that_is_no_listed_file(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("free"))
    check_listed(manifest)
    with pytest.raises(BundleError, match=r"uses free_1_of_2\.onnx, but does not list it"):
        check_listed(msgspec.structs.replace(manifest, files={}))
