"""int8 caches: scales by their definition, codes as the operator rounds them, and what both cost."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.weight_files import read_kv_scales
from engine.compile.arguments import CompileArguments, KvType, Layout, QualityLevel, Quant
from engine.compile.calibration.documents import calibration_documents, token_sequences
from engine.compile.check.parity import bundle_logits
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.compile.targets import cpu as kv_caches
from engine.compile.targets import cpu as losses
from engine.compile.targets.cpu import KvReach
from engine.errors import CompileError
from engine.sources.resolve import named_source
from tests.engine.compile.graphs.segments.test_graphs import shapes

Build = Callable[..., tuple[Path, Manifest]]
Session = onnxruntime.InferenceSession


def opened(folder: Path, name: str) -> Session:
    return Session(str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"])


def test_graphs_and_their_tensors(int8_cache_bundle: Path) -> None:
    """2 layers of 4 heads on 2 of 16."""
    manifest = load_manifest(int8_cache_bundle)
    specs = {graph.name: graph for graph in manifest.graphs}
    assert list(specs)[-4:] == ["attention", "attention_chunk", "attention_base", "attention_masked"]
    query, key, cache = (1, "rows", 64), (1, "rows", 32), (1, 2, "columns", 16)
    inputs = {"query": query, "key": key, "value": key, "past_key": cache, "past_value": cache}
    inputs |= {"seqlens_k": (1,), "total_sequence_length": ()}
    inputs |= {"key_scale": (1, 2, 1, 16), "value_scale": (1, 2, 1, 16)}
    assert shapes(specs["attention"]) == (
        inputs,
        {"attended": query, "present_key": cache, "present_value": cache},
    )
    assert shapes(specs["attention_chunk"]) == (inputs, {"attended": query, "key_codes": key, "value_codes": key})
    assert {tensor.dtype for tensor in specs["attention_chunk"].outputs} == {"float32", "int8"}
    assert (manifest.kv_dtype, manifest.kv_bytes_per_token) == ("int8", 128)
    rows, weight, scale = ("rows", 2, 2, 16), ("rows", 2, 2, 1), (1, 2, 1, 16)
    shared = {"query": rows, "keys": cache, "values": cache, "mask": ("rows", 1, "columns")}
    shared |= {"key_scale": scale, "value_scale": scale}
    assert shapes(specs["attention_base"]) == (shared, {"base_attended": rows, "base_weight": weight})
    alone = (2, 1, "columns", 16)
    own = shared | {"keys": alone, "values": alone, "mask": ("rows", "columns")}
    own |= {"base_attended": rows, "base_weight": weight}
    assert shapes(specs["attention_masked"]) == (own, {"attended": rows})
    types = {tensor.name: tensor.dtype for tensor in specs["attention_base"].inputs}
    assert types.pop("keys") == types.pop("values") == "int8" and set(types.values()) == {"float32"}


@pytest.mark.parametrize(("level", "length", "margin"), [("fast", 32, 1.5), ("good", 128, 1.2)])
def test_scales_by_definition(
    level: str,
    length: int,
    margin: float,
    tiny_checkpoint: Path,
    short_text: Path,
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest magnitude over the calibration's text, and a margin, on code 127; of keys that of a pair's radius."""
    seen: dict[int, list[np.ndarray]] = {}

    def spy(reach: KvReach, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        seen.setdefault(layer, []).append(np.stack([keys[0], values[0]]))
        add(reach, layer, keys, values)

    add = KvReach.add
    monkeypatch.setattr(KvReach, "add", spy)
    options = {"quality": QualityLevel(level), "kv": KvType.INT8, "layout": Layout.SEGMENTS, "calibration": short_text}
    folder, manifest = build(tiny_checkpoint, quant=Quant.INT4, **options)
    scales = read_kv_scales(folder, manifest)
    assert manifest.text is not None
    documents = calibration_documents(tiny_checkpoint, short_text, folder, manifest.text)
    texts = token_sequences(documents, folder, manifest.text, manifest.model.vocab, length, 32)
    assert sorted(seen) == [0, 1] and [len(found) for found in seen.values()] == [len(texts)] * 2
    for layer, found in seen.items():
        sides = np.concatenate(found, axis=2)  # [2, K, columns, D]
        keys, values = sides[0].astype(np.float64), sides[1].astype(np.float64)
        radius = np.sqrt(keys[..., :8] ** 2 + keys[..., 8:] ** 2).max(axis=1)
        most = np.stack([np.concatenate([radius, radius], axis=1), np.abs(values).max(axis=1)])
        np.testing.assert_allclose(scales[layer], margin * most / 127, rtol=1e-6)


def test_a_file_is_what_scales_are_measured_on(tiny_checkpoint: Path, build: Build, tmp_path: Path) -> None:
    """Conversations of a file instead of the built-in text: other scales, and the same ones from the same file."""
    file = tmp_path / "chats.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "aaaa"}]}\n' * 9, encoding="utf-8")
    made = [
        build(tiny_checkpoint, quant=Quant.FP32, kv=KvType.INT8, layout=Layout.SEGMENTS, calibration=calibration)
        for calibration in (None, file, file)
    ]
    scales = [read_kv_scales(*each) for each in made]
    assert (scales[1] == scales[2]).all()
    assert (scales[0] != scales[1]).mean() > 0.9


def test_channels_that_are_always_zero_have_a_scale(int8_cache_bundle: Path) -> None:
    """Other text may use them: as much as the largest of their head, and 1 where the whole head is silent."""
    reach = KvReach(load_manifest(int8_cache_bundle).model)
    keys = np.zeros((1, 2, 3, 16), np.float32)
    keys[0, 0, 1, 3] = -12.7
    values = np.zeros_like(keys)
    values[0, 1, 2, 5] = 1.27
    reach.add(0, keys, values)
    scales = reach.scales(1.2)
    assert scales[0, 0, 0] == pytest.approx(0.12, rel=1e-5) and (scales[0, 0, 1] == 1).all()
    assert scales[0, 1, 1] == pytest.approx(0.012, rel=1e-5) and (scales[1] == 1).all()


@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("past", [0, 13])
def test_the_chunk_graph_rounds_as_the_operator_does(int8_cache_bundle: Path, rows: int, past: int) -> None:
    """Every code, also of ties, of what the scale does not reach and of values next to a step; and the same answers."""
    random = np.random.default_rng(rows + past)
    scales = random.uniform(0.01, 0.05, (2, 1, 2, 1, 16)).astype(np.float32)
    steps = random.integers(-140, 140, (2, rows, 2, 16)) + random.choice([0, 0.5, 0.25, 0.4999], (2, rows, 2, 16))
    fresh = (steps * scales[:, 0, None, :, 0]).astype(np.float32).reshape(2, 1, rows, 32)
    caches = random.integers(-127, 128, (2, 1, 2, past + rows + 3, 16)).astype(np.int8)
    feeds = {
        "query": random.standard_normal((1, rows, 64)).astype(np.float32),
        **dict(zip(("key", "value"), fresh, strict=True)),
        **dict(zip(("past_key", "past_value"), caches, strict=True)),
        **dict(zip(("key_scale", "value_scale"), scales, strict=True)),
        "seqlens_k": np.array([past + rows - 1], np.int32),
        "total_sequence_length": np.array(past + rows, np.int32),
    }
    attended, *presents = opened(int8_cache_bundle, "attention").run(None, feeds)
    chunked, *codes = opened(int8_cache_bundle, "attention_chunk").run(None, feeds)
    for present, code, before in zip(presents, codes, caches, strict=True):
        new = present[0, :, past : past + rows].swapaxes(0, 1).reshape(rows, 32)
        assert (code[0] == new).all() and {-128, 127} & set(code.flatten().tolist())
        assert (present[0, :, :past] == before[0, :, :past]).all()
    np.testing.assert_allclose(chunked, attended, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "outer", "mask"), [("attention_base", 1, (5, 1, 33)), ("attention_masked", 2, (5, 33))]
)
def test_codes_under_a_mask_are_what_they_stand_for(
    int8_cache_bundle: Path, segmented_bundle: Path, name: str, outer: int, mask: tuple[int, ...]
) -> None:
    """The graph for float caches, given codes times scales, answers the same."""
    random = np.random.default_rng(5)
    codes = random.integers(-128, 128, (2, outer, 2 // outer, 33, 16)).astype(np.int8)
    scales = random.uniform(0.01, 0.05, (2, 1, 2, 1, 16)).astype(np.float32)
    hidden = np.where(random.random(mask) < 0.3, np.float32(-1e30), np.float32(0))
    feeds = {"query": random.standard_normal((5, 2, 2, 16)).astype(np.float32), "mask": hidden}
    if name == "attention_masked":
        feeds["base_attended"] = random.standard_normal((5, 2, 2, 16)).astype(np.float32)
        feeds["base_weight"] = random.standard_normal((5, 2, 2, 1)).astype(np.float32)
    floats = codes * scales.reshape(2, outer, 2 // outer, 1, 16)
    rounded = {"keys": codes[0], "values": codes[1], "key_scale": scales[0], "value_scale": scales[1]}
    found = opened(int8_cache_bundle, name).run(None, feeds | rounded)
    expected = opened(segmented_bundle, name).run(None, feeds | {"keys": floats[0], "values": floats[1]})
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("quant", [Quant.FP32, Quant.INT8, Quant.INT4])
def test_figures_are_of_the_bundle_as_it_is(quant: Quant, tiny_checkpoint: Path, build: Build) -> None:
    """The bundle with its caches against the checkpoint; and against the same bundle with float caches."""
    _, manifest = build(tiny_checkpoint, quant=quant, kv=KvType.INT8, layout=Layout.SEGMENTS, parity_tokens=60)
    assert 0 < manifest.parity["kv_kl"] < 0.02 and manifest.parity["kv_top1"] > 0.8
    _, floats = build(tiny_checkpoint, quant=quant, kv=KvType.FLOAT32, layout=Layout.SEGMENTS, parity_tokens=60)
    assert "kv_kl" not in floats.parity and floats.kv_dtype == "float32" and not floats.kv_scales
    assert abs(manifest.parity["kl"] - floats.parity["kl"]) < 0.02
    assert manifest.parity["kl"] != floats.parity["kl"]


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 20, 40])
def test_passes_of_any_rows_agree_within_rounding(int8_cache_bundle: Path, rows: int) -> None:
    manifest, text = load_manifest(int8_cache_bundle), [[(i * 31 + 7) % 256 for i in range(40)]]
    whole = bundle_logits(int8_cache_bundle, manifest, text, 40)
    cut = bundle_logits(int8_cache_bundle, manifest, text, rows)
    np.testing.assert_allclose(cut, whole, atol=0.05 * np.abs(whole).max())


def test_a_float_bundle_is_still_held_to_the_checkpoint(
    tiny_checkpoint: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounded caches excuse no other difference."""

    def wrong(*arguments: object) -> np.ndarray:
        return bundle_logits(*arguments) * 1.01  # type: ignore[arg-type]

    monkeypatch.setattr(losses, "bundle_logits", wrong)
    with pytest.raises(CompileError, match="differ from the checkpoint"):
        build(tiny_checkpoint, quant=Quant.FP32, kv=KvType.INT8, layout=Layout.SEGMENTS)


def test_int8_is_the_default_where_it_loses_next_to_nothing(tmp_path: Path) -> None:
    """The embedded model rounded to nearest, on questions that its training held out."""
    demo = named_source("demo", tmp_path)
    arguments = CompileArguments(demo.folder, tmp_path / "demo", parity_tokens=demo.parity_tokens)
    manifest = compile_bundle(arguments, SilentProgress())
    assert manifest.kv_dtype == "int8" and manifest.parity["kv_kl"] < manifest.parity["kl"] / 20
    assert manifest.parity["kv_top1"] > 0.97


def test_float32_is_the_default_where_int8_loses_more(
    tiny_checkpoint: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales so wide that caches hold few codes: the loss is measured, told, and avoided."""
    monkeypatch.setattr(kv_caches, "QUICK", (32, 20.0))
    _, manifest = build(tiny_checkpoint, quant=Quant.INT8, layout=Layout.SEGMENTS, parity_tokens=60)
    assert manifest.kv_dtype == "float32" and not manifest.kv_scales and "kv_kl" not in manifest.parity
