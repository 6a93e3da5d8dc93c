"""What an encoder's manifest must say before its numbers are believed."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from engine.bundle.check import check_contract
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, files_used, load_manifest
from engine.bundle.specs import EncoderSpec, ModelTask, RerankKind, RerankSpec
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.errors import BundleError
from tests.tiny_encoder import write_encoder


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder / "tiny")
    arguments = CompileArguments(folder / "tiny", folder / "bundle", quant=Quant.FP32, rows=(8, 32))
    compile_bundle(arguments, SilentProgress())
    return load_manifest(folder / "bundle")


def test_what_the_compiler_writes_is_right(manifest: Manifest) -> None:
    check_contract(manifest)
    assert [(graph.kind, graph.rows) for graph in manifest.graphs] == [(GraphKind.ENCODER, 8), (GraphKind.ENCODER, 32)]


def first(manifest: Manifest, **changes: object) -> Manifest:
    """With its first graph changed."""
    return replace(manifest, graphs=(replace(manifest.graphs[0], **changes), *manifest.graphs[1:]))


def without(graph: GraphSpec, name: str) -> tuple[object, ...]:
    return tuple(tensor for tensor in graph.inputs if tensor.name != name)


def renamed(graph: GraphSpec, old: str, new: str) -> tuple[object, ...]:
    return tuple(replace(tensor, name=new) if tensor.name == old else tensor for tensor in graph.inputs)


PAIR = RerankSpec(RerankKind.PAIR)
DAMAGES: dict[str, tuple[Callable[[Manifest], Manifest], str]] = {
    "longest": (lambda m: replace(m, max_context=33), "may have 33 tokens, the largest graph has 32 rows"),
    "too many rows": (lambda m: first(m, rows=8193), "8193 rows, 8192 is the most"),
    "rows twice": (lambda m: replace(m, graphs=(*m.graphs, m.graphs[0])), "one graph for each number of rows"),
    "no graph": (lambda m: replace(m, graphs=()), "at least one"),
    "kind": (lambda m: first(m, kind=GraphKind.DECODER), "is no encoder of a fixed number of rows"),
    "free": (lambda m: first(m, rows=None), "is no encoder of a fixed number of rows"),
    "no mask": (lambda m: first(m, inputs=without(m.graphs[0], "attention_mask")), "lacks an input"),
    "no positions": (lambda m: first(m, inputs=without(m.graphs[0], "position_ids")), "lacks an input"),
    "unknown": (
        lambda m: first(m, inputs=renamed(m.graphs[0], "position_ids", "past")),
        "which nothing provides",
    ),
    "shape": (lambda m: first(m, rows=16), "whose rows, context and model want"),
    "output": (lambda m: first(m, outputs=()), "must give hidden_states and nothing else"),
    "task": (lambda m: replace(m, task=ModelTask.GENERATE), "an encoder generates nothing"),
    "vectors": (lambda m: replace(m, pooling=None), "makes vectors of 64 numbers"),
    "headless": (lambda m: replace(m, task=ModelTask.RERANK, rerank=PAIR), "has a score head"),
    "lost head": (lambda m: replace(m, encoder=EncoderSpec(2, score_head="x.bin")), "does not list it"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_manifest_is_refused_by_name(damage: str, manifest: Manifest) -> None:
    change, message = DAMAGES[damage]
    with pytest.raises(BundleError, match=message):
        check_contract(change(manifest))


def test_the_head_has_its_size(manifest: Manifest) -> None:
    encoder = EncoderSpec(2, score_head=manifest.graphs[0].file)
    damaged = replace(manifest, task=ModelTask.RERANK, rerank=PAIR, encoder=encoder)
    with pytest.raises(BundleError, match=r"a head over 64 numbers takes 16900"):
        check_contract(damaged)


def test_files_of_a_head_stay_inside(manifest: Manifest) -> None:
    assert "head.bin" in files_used(replace(manifest, encoder=EncoderSpec(2, score_head="head.bin")))
