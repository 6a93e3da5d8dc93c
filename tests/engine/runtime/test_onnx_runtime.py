"""Tiny real graphs on the CPU provider: packing, poison, permutations, widths, the host cache, loading."""

import gc
import math
import weakref
from pathlib import Path

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from safetensors.numpy import load_file

from engine.bundle.manifest import GraphKind, load_manifest, save_manifest
from engine.bundle.variant import ShapeTable, StepShape, shape_table
from engine.bundle.weight_files import ForecastPrefix
from engine.core.plan import Segment, StepPlan
from engine.errors import BundleError, StepFailed
from engine.runtime.interface import PackedBatch, pack
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.sessions import cpu_provider, load_sessions
from tests.bundles import LAYOUTS, Bundles
from tests.engine.worker.simulation import sequence_of

VOCAB_PROMPT = (5, 17, 99, 123, 77, 42, 7, 11, 200, 31, 8)
OTHER = (9, 9, 140, 3, 250, 61, 12)


def open_runtime(folder: Path, pinned: StepShape | None = None) -> OnnxRuntime:
    manifest = load_manifest(folder)
    shapes = shape_table(manifest, 64)
    if shapes.free:
        shapes = ShapeTable((), 64, 256)
    if pinned is not None:
        shapes = ShapeTable((pinned,), pinned.rows, pinned.past)
    return OnnxRuntime(folder, manifest, shapes, cpu_provider(1))


def segment(name: str, tokens: tuple[int, ...], position: int, blocks: tuple[int, ...], logit_rows: int = 1) -> Segment:
    columns = tuple(blocks[i // 16] * 16 + i % 16 for i in range(position, position + len(tokens)))
    held = blocks[: -(-position // 16)]
    return Segment(sequence_of(name), tokens, position, held, position, columns, logit_rows)


def keep(runtime: OnnxRuntime, batch: PackedBatch, plan: StepPlan) -> None:
    rows = np.concatenate([np.arange(s, s + len(g.tokens)) for s, g in zip(batch.starts, plan.segments, strict=True)])
    columns = np.concatenate([np.array(g.targets) for g in plan.segments])
    runtime.keep(rows.astype(np.int64), columns.astype(np.int64))


def run(runtime: OnnxRuntime, shape: StepShape, *segments: Segment) -> np.ndarray:
    plan = StepPlan(shape, segments)
    batch = pack(plan, 16)
    logits = runtime.run(batch).decoded().copy()
    keep(runtime, batch, plan)
    return logits


def shape_for(runtime: OnnxRuntime, rows: int) -> StepShape:
    if runtime.shapes.free:
        return StepShape(rows, 64)
    return next(shape for shape in runtime.shapes.fixed if shape.rows >= rows and shape.past >= 32)


def test_a_step_is_timed_by_part(bundles: Bundles) -> None:
    runtime = open_runtime(bundles("free"))
    run(runtime, shape_for(runtime, 8), segment("a", VOCAB_PROMPT[:8], 0, (1,), 1))
    assert set(runtime.part_seconds) == {"inputs", "layers", "head"}
    assert all(seconds > 0 for seconds in runtime.part_seconds.values())


def test_every_layout_gives_the_same_logits(bundles: Bundles) -> None:
    results = {}
    for layout in (name for name in LAYOUTS if not name.startswith("segments")):
        runtime = open_runtime(bundles(layout))
        first = run(runtime, shape_for(runtime, 8), segment("a", VOCAB_PROMPT[:8], 0, (1,), 1))
        second = run(runtime, shape_for(runtime, 3), segment("a", VOCAB_PROMPT[8:], 8, (1,), 1))
        results[layout] = np.concatenate([first, second])
        runtime.close()
    exact = [results[name] for name in results if "int" not in name]
    for other in exact[1:]:
        np.testing.assert_allclose(other, exact[0], rtol=1e-4, atol=1e-4)
    assert not np.allclose(results["free int4"], exact[0], atol=1e-3)  # quantised weights really are


@pytest.mark.parametrize("layout", ["free", "fixed", "free int8", "free int4"])
def test_packed_equals_solo_bit_for_bit_within_one_variant(bundles: Bundles, layout: str) -> None:
    """Neighbours change no bit. Another place in the step may: a float softmax sums its columns in their order."""
    shape = StepShape(32, 96 if layout == "fixed" else 64)
    runtime = open_runtime(bundles(layout), pinned=shape)
    solo = run(runtime, shape, segment("a", VOCAB_PROMPT[:8], 0, (0,)))
    solo_next = run(runtime, shape, segment("a", (33,), 8, (0,)))
    others = segment("c", (4,), 0, (3,)), segment("b", OTHER, 0, (2,))
    packed = run(runtime, shape, *others, segment("a", VOCAB_PROMPT[:8], 0, (0,)))
    packed_next = run(runtime, shape, segment("b", (1,), 7, (2,)), segment("a", (33,), 8, (0,)))
    assert (packed[2] == solo[0]).all()
    assert (packed_next[1] == solo_next[0]).all()


@pytest.mark.parametrize("layout", ["free", "fixed"])
def test_columns_and_rows_may_be_permuted(bundles: Bundles, layout: str) -> None:
    """Another order of columns is another order of summation: equal but for rounding."""
    runtime = open_runtime(bundles(layout))
    shape = StepShape(32, 96)
    prompt = tuple((i * 31 + 7) % 256 for i in range(20))
    run(runtime, shape, segment("a", prompt, 0, (0, 1)))
    expected = run(runtime, shape, segment("a", (33,), 20, (0, 1)))
    run(runtime, shape, segment("x", OTHER, 0, (1,)), segment("a", prompt, 0, (5, 2)))
    permuted = run(runtime, shape, segment("a", (33,), 20, (5, 2)), segment("x", (1, 2), 7, (1,)))
    np.testing.assert_allclose(permuted[0], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["free", "fixed", "none", "lut"])
def test_stale_columns_and_unused_rows_change_nothing(bundles: Bundles, layout: str) -> None:
    runtime = open_runtime(bundles(layout))
    shape = StepShape(32, 96) if layout == "fixed" else StepShape(32, 64)
    run(runtime, shape, segment("a", VOCAB_PROMPT, 0, (1,)))
    plan = StepPlan(shape, (segment("a", (33,), 11, (1,)),))
    batch = pack(plan, 16)
    clean = runtime.run(batch).decoded().copy()
    pool = runtime._pool.columns
    stale = np.setdiff1d(np.arange(shape.past), np.arange(16, 16 + 11))
    pool.keys[..., stale] = 3e4
    pool.values[..., stale, :] = -3e4
    batch.input_ids[: batch.starts[0]] = 250
    batch.positions[: batch.starts[0]] = 200
    assert (runtime.run(batch).decoded() == clean).all()


def test_a_failed_step_leaves_the_pool_untouched(bundles: Bundles) -> None:
    runtime = open_runtime(bundles("free"))
    shape = StepShape(8, 64)
    run(runtime, shape, segment("a", VOCAB_PROMPT[:8], 0, (0,)))
    before = runtime._pool.columns.keys.copy()
    batch = pack(StepPlan(shape, (segment("a", (10**6,), 8, (0,)),)), 16)  # an id beyond the vocabulary
    with pytest.raises(StepFailed, match="graph free_1_of_2 as ar8_cl72 failed"):
        runtime.run(batch)
    assert (runtime._pool.columns.keys == before).all()
    clean = run(runtime, shape, segment("a", (3,), 8, (0,)))
    assert np.isfinite(clean).all()


class Witness:
    """A session that tells the shapes of what came out."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self.shapes: list[tuple[int, ...]] = []

    def io_binding(self) -> ort.IOBinding:
        return self._session.io_binding()

    def run_with_iobinding(self, binding: ort.IOBinding) -> None:
        self._session.run_with_iobinding(binding)
        (output,) = binding.get_outputs()
        self.shapes.append(tuple(output.shape()))


@pytest.mark.parametrize(
    ("layout", "widths"), [("free", [2, 1]), ("lut", [2, 1]), ("fixed", [8, 1])], ids=["free", "lut", "fixed"]
)
def test_only_rows_that_need_logits_go_through_the_head(bundles: Bundles, layout: str, widths: list[int]) -> None:
    manifest = load_manifest(bundles(layout))
    runtime = open_runtime(bundles(layout))
    witnesses = []
    for graph in manifest.graphs:
        if graph.kind is GraphKind.LMHEAD:
            witnesses.append(Witness(runtime._sessions[graph.name]))
            runtime._sessions[graph.name] = witnesses[-1]
    shape = shape_for(runtime, 12)
    decode, chunk = segment("d", (4,), 0, (1,)), segment("p", VOCAB_PROMPT, 0, (0,))
    assert run(runtime, shape, chunk, decode).shape == (2, 384)
    assert run(runtime, shape, segment("p", OTHER, 11, (0, 2), 0), segment("d", (8,), 1, (1,))).shape == (1, 384)
    assert run(runtime, shape, segment("p", OTHER, 18, (0, 2), 0)).shape == (0, 384)  # a chunk that is not the last
    seen = sorted((shape for witness in witnesses for shape in witness.shapes), reverse=True)
    assert seen == [(1, width, 384) for width in widths]
    taken = sorted((head.hidden.shape for head in runtime._head._bound.values()), reverse=True)
    assert taken == [(1, width, 64) for width in widths]


def test_the_head_runs_in_fixed_memory(bundles: Bundles) -> None:
    """Logits are the runtime's own until the next run; more rows than any head has go through it in turns."""
    runtime = open_runtime(bundles("free"))
    shape, tokens = shape_for(runtime, 12), segment("p", VOCAB_PROMPT, 0, (0,))
    batch = pack(StepPlan(shape, (tokens,)), 16)
    first, kept = runtime.run(batch).decoded(), runtime.run(batch).decoded().copy()
    assert np.shares_memory(first, runtime.run(batch).decoded())
    np.testing.assert_array_equal(first, kept)
    assert runtime._last is not None and runtime._last.output is not None
    hidden = runtime._last.output[0][0, :1].repeat(9, axis=0)
    runtime._head._graphs = [msgspec.structs.replace(runtime._head._graphs[0], rows=4)]
    runtime._head.clear()
    many = runtime._head.logits(hidden, 1).decoded()
    assert many.shape == (9, 384)
    np.testing.assert_array_equal(many, np.repeat(many[:1], 9, axis=0))


def test_an_embedding_graph_feeds_a_decoder_that_takes_no_ids(bundles: Bundles) -> None:
    """The first part's output is the rows of the embedding table, and the decoder's only word of the tokens."""
    folder = bundles("lut")
    manifest = load_manifest(folder)
    table, decoder, _ = manifest.graphs
    assert (table.kind, [tensor.name for tensor in table.inputs]) == (GraphKind.LUT, ["input_ids"])
    assert "input_ids" not in {tensor.name for tensor in decoder.inputs}
    assert table.outputs[0].name in {tensor.name for tensor in decoder.inputs}
    (file,) = bundles.source.glob("*.safetensors")
    weights = load_file(file)["model.embed_tokens.weight"]
    runtime = open_runtime(folder)
    ids = np.array([VOCAB_PROMPT], np.int32)
    (embedded,) = runtime._sessions[table.name].run(None, {"input_ids": ids})
    np.testing.assert_array_equal(embedded[0], weights[list(VOCAB_PROMPT)].astype(np.float32))
    whole = open_runtime(bundles("none"))
    expected = run(whole, StepShape(11, 64), segment("a", VOCAB_PROMPT, 0, (0,)))
    got = run(runtime, StepShape(11, 64), segment("a", VOCAB_PROMPT, 0, (0,)))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_widths_change_without_moving_a_column(bundles: Bundles) -> None:
    runtime = open_runtime(bundles("free"))
    run(runtime, StepShape(11, 64), segment("a", VOCAB_PROMPT, 0, (2,)))
    column = runtime._pool.columns.keys[..., 35].copy()
    expected = run(runtime, StepShape(1, 64), segment("a", (33,), 11, (2,)))
    for past in (128, 256, 64):
        again = run(runtime, StepShape(1, past), segment("a", (33,), 11, (2,)))
        np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-5)
        assert (runtime._pool.columns.keys[..., 35] == column).all()
    assert runtime.relayouts == 3


def test_the_columns_of_a_forecast_prefix_outlast_a_narrower_step(bundles: Bundles) -> None:
    """A variant without a past gives the pool no columns for a while."""
    runtime = open_runtime(bundles("free"))
    lead = runtime._pool.columns.keys.shape[:-1]
    keys = np.arange(math.prod(lead) * 80, dtype=np.float32).reshape(*lead, 80)
    values = np.ascontiguousarray(np.swapaxes(keys, -1, -2))
    runtime.load_prefix(ForecastPrefix(keys, values))
    for past in (128, 64, 128, 256):
        runtime.lay_out(StepShape(8, past))
        held = runtime._pool.columns
        assert held.width == past
        if past >= 80:
            assert (held.keys[..., :80] == keys).all()
            assert (held.values[..., :80, :] == values).all()


def test_the_loop_allocates_no_cache(bundles: Bundles) -> None:
    runtime = open_runtime(bundles("fixed"))
    shape = StepShape(8, 56)
    run(runtime, shape, segment("a", VOCAB_PROMPT[:8], 0, (0,)))
    pool, bound = runtime._pool.columns, runtime._last
    addresses = (pool.keys.ctypes.data, pool.values.ctypes.data)
    for step in range(5):
        run(runtime, shape, segment("a", (step,), 8 + step, (0,)))
        assert runtime._last is bound
        assert (runtime._pool.columns.keys.ctypes.data, runtime._pool.columns.values.ctypes.data) == addresses


def test_the_host_cache_brings_back_the_same_bytes_elsewhere(bundles: Bundles) -> None:
    runtime = open_runtime(bundles("free"))
    prompt = tuple((i * 31 + 7) % 256 for i in range(16))
    run(runtime, StepShape(16, 64), segment("a", prompt, 0, (3,)))
    expected = run(runtime, StepShape(1, 64), segment("a", (33,), 16, (3, 2)))
    runtime.offload(slice(48, 64), b"k")
    assert runtime.offloaded(b"k")  # copied by now
    runtime._pool.columns.keys[...] = 9.0
    runtime.load(slice(96, 112), b"k")
    restored = run(runtime, StepShape(1, 128), segment("a", (33,), 16, (6, 2)))
    np.testing.assert_allclose(restored, expected, rtol=1e-5, atol=1e-5)
    runtime.evict(b"k")
    with pytest.raises(KeyError):
        runtime.load(slice(0, 16), b"k")


def test_a_manifest_that_lies_about_a_tensor_is_refused(bundles: Bundles, tmp_path: Path) -> None:
    source = bundles("free")
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    manifest = load_manifest(tmp_path)
    graph = manifest.graphs[0]
    wrong = msgspec.structs.replace(graph.inputs[-1], shape=(2, 1, 3, "past"))
    graphs = (msgspec.structs.replace(graph, inputs=(*graph.inputs[:-1], wrong)), *manifest.graphs[1:])
    save_manifest(tmp_path, msgspec.structs.replace(manifest, graphs=graphs))
    with pytest.raises(BundleError, match=wrong.name):
        open_runtime(tmp_path)


def test_open_close_and_open_again(bundles: Bundles) -> None:
    """In one process: the same bits, and nothing of the first one stays."""
    results = []
    for _ in range(3):
        runtime = open_runtime(bundles("fixed"))
        logits = [run(runtime, StepShape(8, 56), segment("a", VOCAB_PROMPT[:8], 0, (0,)))]
        logits.append(run(runtime, StepShape(1, 63), segment("a", (3,), 8, (0,))))
        results.append(np.concatenate(logits))
        assert runtime._last is not None and runtime._last.output is not None
        buffers = (
            runtime._pool.columns.keys,
            runtime._pool.columns.values,
            runtime._last.fresh.keys,
            runtime._last.output[0],
        )
        held = [weakref.ref(array) for array in buffers]
        held += [weakref.ref(session) for session in runtime._sessions.values()]
        del buffers
        assert all(reference() is not None for reference in held)
        runtime.close()
        gc.collect()
        assert [reference for reference in held if reference() is not None] == []
    assert (results[0] == results[1]).all() and (results[0] == results[2]).all()


def test_close_is_clean_and_final(bundles: Bundles) -> None:
    runtime = open_runtime(bundles("free"))
    run(runtime, StepShape(1, 64), segment("a", (1,), 0, (0,)))
    runtime.close()
    assert not hasattr(runtime._pool, "columns")


@pytest.mark.parametrize("layout", ["free", "fixed"])
def test_a_pool_that_is_laid_out_is_not_re_laid_by_the_step(bundles: Bundles, layout: str) -> None:
    """So that the time of `run` is that of the graphs alone."""
    runtime = open_runtime(bundles(layout))
    for shape in (StepShape(1, 64), StepShape(8, 128)) if layout == "free" else (StepShape(1, 63), StepShape(8, 56)):
        runtime.lay_out(shape)
        pool, bound, relayouts = runtime._pool.columns, runtime._steps[shape], runtime.relayouts
        assert pool.width == runtime._width(shape)
        run(runtime, shape, segment("a", (1,), 0, (0,)))
        assert (runtime._pool.columns, runtime._steps[shape], runtime.relayouts) == (pool, bound, relayouts)
    assert runtime.relayouts
    runtime.close()


@pytest.mark.parametrize("side", ["keys", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named_and_no_others(bundles: Bundles, side: str, value: float) -> None:
    runtime = open_runtime(bundles("free"))
    runtime.run(pack(StepPlan(StepShape(8, 64), (segment("a", VOCAB_PROMPT[:6], 0, (0,)),)), 16))
    asked = np.arange(2, 8)
    assert runtime.non_finite_rows(asked).tolist() == []
    assert runtime._last is not None
    fresh = runtime._last.fresh
    for row in (0, 3, 6):
        (fresh.keys if side == "keys" else np.swapaxes(fresh.values, 3, 4))[1, 0, 0, -1, row] = value
    assert runtime.non_finite_rows(asked).tolist() == [3, 6]


def test_a_graph_of_keys_and_values_alone_computes_a_prompt(bundles: Bundles, tmp_path: Path) -> None:
    """The graphs of 32 rows are declared KV-only; what they leave in the pool is what those with logits leave."""
    source = bundles("fixed")
    manifest = load_manifest(source)
    prompt = tuple((i * 31 + 7) % 256 for i in range(20))
    whole = open_runtime(source)
    run(whole, StepShape(32, 96), segment("a", prompt, 0, (0, 1), 0))
    expected = run(whole, StepShape(1, 127), segment("a", (33,), 20, (0, 1)))
    whole.close()
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    kv_only = tuple(
        msgspec.structs.replace(graph, kind=GraphKind.DECODER_PREFILL)
        if graph.kind is GraphKind.DECODER and graph.rows == 32
        else graph
        for graph in manifest.graphs
    )
    save_manifest(tmp_path, msgspec.structs.replace(manifest, graphs=kv_only))
    runtime = open_runtime(tmp_path)
    assert StepShape(32, 96) in runtime.shapes.prefill
    assert run(runtime, StepShape(32, 96), segment("a", prompt, 0, (0, 1), 0)).shape == (0, 384)
    assert (run(runtime, StepShape(1, 127), segment("a", (33,), 20, (0, 1))) == expected).all()


def test_unfinished_business_is_an_error_of_ours(bundles: Bundles) -> None:
    runtime = open_runtime(bundles("free"))
    with pytest.raises(AssertionError, match="before run"):
        runtime.non_finite_rows(np.arange(1))
    with pytest.raises(AssertionError, match="before run"):
        runtime.keep(np.arange(1), np.arange(1))


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize(
    ("lie", "told"), [("type", "its manifest says int64"), ("missing", "has an unknown"), ("more", "has no .* another")]
)
def test_every_lie_about_tensors_is_named(bundles: Bundles, tmp_path: Path, side: str, lie: str, told: str) -> None:
    for file in bundles("free").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    manifest = load_manifest(tmp_path)
    graph = manifest.graphs[0]
    *others, last = getattr(graph, side)
    specs = {
        "type": (*others, msgspec.structs.replace(last, dtype="int64")),
        "missing": tuple(others),
        "more": (*others, last, msgspec.structs.replace(last, name="another")),
    }[lie]
    graphs = (msgspec.structs.replace(graph, **{side: specs}), *manifest.graphs[1:])
    with pytest.raises(BundleError, match=f"{graph.name} .*{told}"):
        load_sessions(tmp_path, msgspec.structs.replace(manifest, graphs=graphs), cpu_provider(1))


@pytest.mark.parametrize("layout", ["free", "fixed", "none", "lut"])
@pytest.mark.parametrize("first", [1, 5, 8, 10])
def test_a_prompt_in_two_steps_is_the_prompt_in_one(bundles: Bundles, layout: str, first: int) -> None:
    """So what the first step left in the pool is what the second one needs of it."""
    whole, parts = open_runtime(bundles(layout)), open_runtime(bundles(layout))
    expected = run(whole, shape_for(whole, 11), segment("a", VOCAB_PROMPT, 0, (1,)))
    run(parts, shape_for(parts, first), segment("a", VOCAB_PROMPT[:first], 0, (1,), 0))
    found = run(parts, shape_for(parts, 11 - first), segment("a", VOCAB_PROMPT[first:], first, (1,)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    alone = run(parts, shape_for(parts, 11 - first), segment("b", VOCAB_PROMPT[first:], 0, (0,)))
    assert not np.allclose(alone, expected, rtol=1e-2, atol=1e-2)
