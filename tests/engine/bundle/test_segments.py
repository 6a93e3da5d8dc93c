"""Which attention graphs a bundle of segments may have, and what their tensors are."""

from collections.abc import Callable

import msgspec
import pytest

from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec, load_manifest
from engine.bundle.segments import BASE_ATTENTION, MASKED_ATTENTION, check_segments
from engine.errors import BundleError
from tests.bundles import Bundles
from tests.vision_facts import GEMMA

Change = Callable[[GraphSpec], GraphSpec | None]


def changed(manifest: Manifest, change: Change) -> Manifest:
    graphs = tuple(graph for graph in map(change, manifest.graphs) if graph is not None)
    return msgspec.structs.replace(manifest, graphs=graphs)


def without(*names: str) -> Change:
    return lambda graph: None if graph.name in names else graph


def renamed(name: str, other: str) -> Change:
    return lambda graph: msgspec.structs.replace(graph, name=other) if graph.name == name else graph


def widened(name: str, tensor: str) -> Change:
    def widen(spec: TensorSpec) -> TensorSpec:
        return msgspec.structs.replace(spec, shape=(*spec.shape[:-1], 77)) if spec.name == tensor else spec

    return lambda graph: (
        msgspec.structs.replace(graph, inputs=tuple(map(widen, graph.inputs))) if graph.name == name else graph
    )


@pytest.fixture(params=["segments", "segments int8 caches"])
def manifest(bundles: Bundles, request: pytest.FixtureRequest) -> Manifest:
    """Of float caches, and of int8 ones."""
    return load_manifest(bundles(request.param))


def test_images_that_see_themselves_both_ways_need_a_mask(manifest: Manifest) -> None:
    plain = changed(manifest, without(BASE_ATTENTION, MASKED_ATTENTION))
    with pytest.raises(BundleError, match="both ways: the bundle needs the graph attention_masked"):
        check_segments(msgspec.structs.replace(plain, vision=GEMMA))


def test_both_graphs_for_shared_columns_or_neither(manifest: Manifest) -> None:
    check_segments(manifest)
    check_segments(changed(manifest, without(BASE_ATTENTION, MASKED_ATTENTION)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            without(BASE_ATTENTION),
            "attention graph for all layers of a window, .* attention, {chunk}attention_masked$",
        ),
        (
            without(MASKED_ATTENTION),
            "attention graph for all layers of a window, .* attention, attention_base(, attention_chunk)?$",
        ),
        (
            renamed(BASE_ATTENTION, "attention_other"),
            "attention graph for all layers of a window, .* attention, {chunk}attention_masked, attention_other$",
        ),
        (widened(BASE_ATTENTION, "query"), "graph attention_base input query"),
        (widened(MASKED_ATTENTION, "base_attended"), "graph attention_masked input base_attended"),
    ],
)
def test_other_attention_graphs_are_refused(manifest: Manifest, change: Change, reason: str) -> None:
    chunk = "attention_chunk, " if manifest.kv_dtype == "int8" else ""
    with pytest.raises(BundleError, match=reason.format(chunk=chunk)):
        check_segments(changed(manifest, change))


@pytest.mark.parametrize("graph", [BASE_ATTENTION, MASKED_ATTENTION])
def test_graphs_of_the_other_caches_are_refused(bundles: Bundles, graph: str) -> None:
    rounded, floats = (load_manifest(bundles(layout)) for layout in ("segments int8 caches", "segments"))
    others = {spec.name: spec for spec in floats.graphs}
    with pytest.raises(BundleError, match=rf"graph {graph} lacks the inputs \['key_scale', 'value_scale'\]"):
        check_segments(changed(rounded, lambda spec: others[graph] if spec.name == graph else spec))
    mine = {spec.name: spec for spec in rounded.graphs}
    with pytest.raises(BundleError, match=f"graph {graph} has the unknown inputs .*key_scale"):
        check_segments(changed(floats, lambda spec: mine[graph] if spec.name == graph else spec))


def test_scales_and_codes_of_the_shared_columns_have_their_form(bundles: Bundles) -> None:
    rounded = load_manifest(bundles("segments int8 caches"))

    def of_floats(graph: GraphSpec) -> GraphSpec:
        tensors = (msgspec.structs.replace(spec, dtype="float32") for spec in graph.inputs)
        return msgspec.structs.replace(graph, inputs=tuple(tensors)) if graph.name == BASE_ATTENTION else graph

    with pytest.raises(BundleError, match="graph attention_base input keys is float32"):
        check_segments(changed(rounded, of_floats))
    for name in (BASE_ATTENTION, MASKED_ATTENTION):
        with pytest.raises(BundleError, match=f"graph {name} input value_scale"):
            check_segments(changed(rounded, widened(name, "value_scale")))
