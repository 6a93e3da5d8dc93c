"""Which attention graphs a bundle of segments may have, and what their tensors are."""

from collections.abc import Callable

import msgspec
import pytest

from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec, load_manifest
from engine.bundle.segments import BASE_ATTENTION, MASKED_ATTENTION, check_segments
from engine.errors import BundleError
from tests.bundles import Bundles

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


def test_both_graphs_for_shared_columns_or_neither(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("segments"))
    check_segments(manifest)
    check_segments(changed(manifest, without(BASE_ATTENTION, MASKED_ATTENTION)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without(BASE_ATTENTION), "one attention graph for all layers, .* attention, attention_masked$"),
        (without(MASKED_ATTENTION), "one attention graph for all layers, .* attention, attention_base$"),
        (
            renamed(BASE_ATTENTION, "attention_other"),
            "one attention graph for all layers, .* attention, attention_masked, attention_other$",
        ),
        (widened(BASE_ATTENTION, "query"), "graph attention_base input query"),
        (widened(MASKED_ATTENTION, "base_attended"), "graph attention_masked input base_attended"),
    ],
)
def test_other_attention_graphs_are_refused(bundles: Bundles, change: Change, reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        check_segments(changed(load_manifest(bundles("segments")), change))
