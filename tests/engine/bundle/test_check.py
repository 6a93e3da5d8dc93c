"""Manifests that contradict themselves."""

import msgspec
import pytest

from engine.bundle.check import check_contract, check_listed
from engine.bundle.manifest import DiffusionSpec, GraphKind, Manifest, TensorSpec, load_manifest
from engine.bundle.model_spec import LayerAttention
from engine.bundle.specs import ForecastSpec, LoraModule, RecurrentSpec
from engine.bundle.tensors import WINDOW_MASK
from engine.errors import BundleError
from tests.bundles import Bundles
from tests.engine.runtime.test_onnx_qnn import TWO, bundle


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


FORECAST = ForecastSpec("prefix.bin", 16, 300, (3,))
RECURRENT = RecurrentSpec((0,), 1, 1, 8, 8, 4)
LORA = (LoraModule("model.layers.{layer}.self_attn.q_proj", "qkv", 32, 32),)


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("segments", {"forecast": FORECAST}, "forecast: its rows need graphs that take a mask over one pool"),
        ("fused", {"forecast": FORECAST}, "forecast: its rows need graphs that take a mask over one pool"),
        ("free", {"forecast": FORECAST, "diffusion": DiffusionSpec(4, 0)}, "forecast: a model that denoises blocks"),
        ("free", {"lora": LORA}, "lora: only the graphs of a segmented bundle take adapters"),
    ],
)
def test_what_graphs_of_that_layout_cannot_do(
    bundles: Bundles, layout: str, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        check_contract(msgspec.structs.replace(load_manifest(bundles(layout)), **changes))


@pytest.mark.parametrize(
    ("name", "windows", "message"),
    [
        (WINDOW_MASK, (0, 0), "takes swa_attention_mask, one mask, for windows of 0 sizes"),
        (WINDOW_MASK, (4, 8), "takes swa_attention_mask, one mask, for windows of 2 sizes"),
        ("swa_position_ids_cos", (4, 0), "takes a rotation for windows, of which the manifest tells nothing"),
    ],
)
def test_sights_that_the_model_does_not_have(
    bundles: Bundles, name: str, windows: tuple[int, ...], message: str
) -> None:
    manifest = load_manifest(bundles("free"))
    layers = tuple(LayerAttention(window=window) for window in windows)
    assert manifest.model.layers == len(layers)
    (first, *rest) = manifest.graphs
    first = msgspec.structs.replace(first, inputs=(*first.inputs, TensorSpec(name, "float32", ("rows", "context"))))
    model = msgspec.structs.replace(manifest.model, attention=layers)
    with pytest.raises(BundleError, match=message):
        check_contract(msgspec.structs.replace(manifest, model=model, graphs=(first, *rest)))


def test_blocks_of_recurrent_layers(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("segments"))
    model = msgspec.structs.replace(manifest.model, recurrent=RECURRENT)
    with pytest.raises(BundleError, match="diffusion: rows of recurrent layers see what is before them only"):
        check_contract(msgspec.structs.replace(manifest, model=model, diffusion=DiffusionSpec(4, 0)))


def test_a_graph_that_is_no_listed_file(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("free"))
    check_listed(manifest)
    with pytest.raises(BundleError, match=r"uses free_1_of_2\.onnx, but does not list it"):
        check_listed(msgspec.structs.replace(manifest, files={}))


def segments(manifest: Manifest, **changes: dict[str, object]) -> Manifest:
    """The manifest with fields of graphs changed, by the name of the graph; None drops it."""
    graphs = [
        msgspec.structs.replace(graph, **(changes.get(graph.name) or {}))
        for graph in manifest.graphs
        if graph.name not in changes or changes[graph.name]
    ]
    return msgspec.structs.replace(manifest, graphs=tuple(graphs))


def test_segments(bundles: Bundles) -> None:
    for layout in ("segments", "segments int8", "segments int4"):
        manifest = load_manifest(bundles(layout))
        check_contract(manifest)
        assert manifest.is_segmented and manifest.is_free_shape


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_2_of_3": {}}, "has no linear graph 2 of 3"),
        ({"linear_2_of_3": {"part": 1}}, "two linear graphs are the same part.*compile the bundle again"),
        ({"linear_2_of_3": {"parts": 4}}, "is linear 2 of 4 among 3 linear parts"),
        ({"attention_base": {"kind": GraphKind.DECODER}}, "has one attention graph for all layers"),
        ({"linear_2_of_3": {"kind": GraphKind.ATTENTION}}, "one attention graph for all layers"),
        ({"linear_2_of_3": {"inputs": ()}}, "linear_2_of_3 lacks the inputs .*attended"),
    ],
)
def test_segments_that_do_not_fit_together(
    bundles: Bundles, changes: dict[str, dict[str, object]], message: str
) -> None:
    manifest = load_manifest(bundles("segments int4"))
    with pytest.raises(BundleError, match=message):
        check_contract(segments(manifest, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 32}, r"output query is float32 \[1, 'rows', 64\] in the manifest, .* \[1, 'rows', 128\]"),
        ({"kv_heads": 1}, r"output key is float32 \[1, 'rows', 32\] .* \[1, 'rows', 16\]"),
        ({"hidden": 128}, r"output hidden_out is float32 \[1, 'rows', 64\] .* \[1, 'rows', 128\]"),
        ({"vocab": 1 << 20}, r"output logits .* want float32 \[1, 'logit_rows', 1048576\]"),
        ({"layers": 3}, "has no linear graph 4 of 4"),
    ],
)
def test_segments_of_another_model(bundles: Bundles, changes: dict[str, int], message: str) -> None:
    manifest = load_manifest(bundles("segments"))
    model = msgspec.structs.replace(manifest.model, **changes)
    with pytest.raises(BundleError, match=message):
        check_contract(msgspec.structs.replace(manifest, model=model))


@pytest.mark.parametrize("layout", ["segments", "free"])
def test_recurrent_layers_and_diffusion_exclude_each_other(bundles: Bundles, layout: str) -> None:
    """Rows of a block see each other both ways, and a state is carried one way."""
    manifest = load_manifest(bundles(layout))
    model = msgspec.structs.replace(manifest.model, recurrent=RecurrentSpec((0,), 1, 1, 16, 16, 4))
    both = msgspec.structs.replace(manifest, model=model, diffusion=DiffusionSpec(4, 8))
    with pytest.raises(BundleError, match="diffusion: rows of recurrent layers see"):
        check_contract(both)


def test_segments_cache_floats(bundles: Bundles) -> None:
    manifest = msgspec.structs.replace(load_manifest(bundles("segments")), kv_dtype="uint8")
    with pytest.raises(BundleError, match="caches of float32, float16, int8, not of uint8"):
        check_contract(manifest)
