"""Tiny real graphs on the CPU provider: rows of several sequences in a step, each over a cache of its own."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import ShapeTable, StepShape, pin, shape_table
from engine.core.plan import Segment, StepPlan
from engine.errors import StepFailed
from engine.runtime import attention
from engine.runtime.attention import NonFiniteRows
from engine.runtime.interface import pack
from engine.runtime.linear import RowBuffers
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.sessions import Binding, cpu_provider
from engine.worker.step_times import measure
from tests.bundles import Bundles
from tests.engine.runtime.held import owners
from tests.engine.runtime.test_onnx_runtime import OTHER, VOCAB_PROMPT, segment
from tests.engine.worker.quiet_clock import quiet_clock
from tests.engine.worker.segmented_runtime import smallest_manifest

INT8_CACHES, HALF_CACHES = "segments int8 caches", "segments float16 caches"
PROMPT = tuple((i * 31 + 7) % 256 for i in range(40))


def open_segments(folder: Path, rows: int = 64, pinned: int = 0) -> SegmentRuntime:
    manifest = load_manifest(folder)
    shapes = shape_table(manifest, rows)
    return SegmentRuntime(folder, manifest, pin(shapes, pinned) if pinned else shapes, cpu_provider(1))


def run(runtime: SegmentRuntime, *segments: Segment, keep: bool = True) -> np.ndarray:
    rows = sum(len(item.tokens) for item in segments)
    shape = runtime.shapes.fixed[0] if runtime.shapes.fixed else StepShape(rows, 64)
    plan = StepPlan(shape, segments)
    batch = pack(plan, 16)
    logits = runtime.run(batch).decoded().copy()
    if keep:
        kept = [np.arange(start, start + len(item.tokens)) for start, item in zip(batch.starts, segments, strict=True)]
        columns = [column for item in segments for column in item.targets]
        runtime.keep(np.concatenate(kept), np.array(columns, np.int64))
    return logits


def in_pool(folder: Path, tokens: tuple[int, ...]) -> np.ndarray:
    """Logits of every token by the pool graph of the same weights."""
    runtime = OnnxRuntime(folder, load_manifest(folder), ShapeTable((), 64, 256), cpu_provider(1))
    plan = StepPlan(StepShape(len(tokens), 64), (segment("a", tokens, 0, (0, 1, 2), len(tokens)),))
    return runtime.run(pack(plan, 16)).decoded().copy()


def test_segments_give_the_logits_of_the_pool_graph(bundles: Bundles) -> None:
    expected = in_pool(bundles("free"), PROMPT)
    runtime = open_segments(bundles("segments"))
    whole = run(runtime, segment("a", PROMPT, 0, (4, 2, 9), 40))
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-4)


def test_a_step_is_timed_by_part(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    assert set(runtime.part_seconds) == {"inputs", "linear", "attention", "head"}
    assert all(seconds > 0 for seconds in runtime.part_seconds.values())


def test_logits_of_any_number_of_rows_lie_in_one_memory(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    expected = run(runtime, segment("a", PROMPT, 0, (4, 2, 9), 40), keep=False)
    memory = set()
    for wanted in (8, 3, 8, 1):
        plan = StepPlan(StepShape(40, 64), (segment("a", PROMPT, 0, (4, 2, 9), wanted),))
        logits = runtime.run(pack(plan, 16)).codes
        np.testing.assert_allclose(logits, expected[-wanted:], rtol=1e-5, atol=1e-5)
        memory.add(logits.ctypes.data)
    assert len(memory) == 1


@pytest.mark.parametrize("first", [1, 15, 16, 17, 39])
def test_a_prompt_in_two_steps_is_the_prompt_in_one(bundles: Bundles, first: int) -> None:
    runtime = open_segments(bundles("segments"))
    whole = run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    run(runtime, segment("b", PROMPT[:first], 0, (1, 3, 5)))
    halved = run(runtime, segment("b", PROMPT[first:], first, (1, 3, 5)))
    np.testing.assert_allclose(halved, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("most", [7, 16])
def test_rows_that_are_attended_in_parts_are_the_whole(
    most: int, bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a past, beside a decode, and with a last part of a few rows that another graph computes."""
    runtime = open_segments(bundles("segments"))
    whole = run(runtime, segment("a", PROMPT, 0, (4, 2, 9), 40))
    monkeypatch.setattr(attention, "ROWS_AT_ONCE", most)
    run(runtime, segment("b", PROMPT[:5], 0, (1, 3, 5)), segment("c", PROMPT[:39], 0, (6, 7, 8)))
    mixed = run(runtime, segment("b", PROMPT[5:], 5, (1, 3, 5), 35), segment("c", PROMPT[39:], 39, (6, 7, 8)))
    np.testing.assert_allclose(mixed, np.concatenate([whole[5:], whole[-1:]]), rtol=1e-4, atol=1e-4)


def test_parts_are_wide_behind_many_columns_and_whole_over_rounded_caches(bundles: Bundles) -> None:
    def counts(kind: str, past: int, pinned: int = 0) -> list[tuple[int, int, int]]:
        given = pack(StepPlan(StepShape(40, 64), (segment("a", PROMPT, 0, (4, 2, 9)),)), 16).segments[0]
        causal = open_segments(bundles(kind), pinned=pinned)._causal
        return [(each.start, each.count, each.past) for each in causal.parts(replace(given, count=300, past=past))]

    assert counts("segments", 100) == [(0, 128, 100), (128, 128, 228), (256, 44, 356)]
    assert counts("segments", 4000) == [(0, 256, 4000), (256, 44, 4256)]
    assert counts(INT8_CACHES, 100) == counts("segments", 100, pinned=64) == [(0, 300, 100)]


def test_prompts_and_decodes_of_any_length_share_a_step(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    solo = [run(runtime, segment("a", VOCAB_PROMPT, 0, (0,))), run(runtime, segment("b", OTHER, 0, (1,)))]
    solo.append(run(runtime, segment("a", (33,), len(VOCAB_PROMPT), (0,)), keep=False))
    again = (
        segment("c", PROMPT, 0, (5, 6, 7)),
        segment("b", OTHER, 0, (2,)),
        segment("a", (33,), len(VOCAB_PROMPT), (0,)),
    )
    mixed = run(runtime, *again)
    np.testing.assert_allclose(mixed[1], solo[1][0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mixed[2], solo[2][0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "layout", ["segments", "segments int4", "segments int4 float caches", INT8_CACHES, HALF_CACHES]
)
def test_one_shape_gives_the_same_bits_however_rows_are_shared_out(bundles: Bundles, layout: str) -> None:
    """Chunks of a prompt, neighbours, the place of a row: nothing changes a bit, also where a chunk is one row."""
    runtime = open_segments(bundles(layout), pinned=32)
    solo = [run(runtime, segment("a", PROMPT[:20], 0, (0, 1)))[0], run(runtime, segment("a", (33,), 20, (0, 1)))[0]]
    run(runtime, segment("b", PROMPT[:1], 0, (2, 3)), segment("c", OTHER, 0, (9,)))
    run(
        runtime, segment("d", OTHER, 0, (10,)), segment("b", PROMPT[1:18], 1, (2, 3)), segment("e", OTHER[:3], 0, (11,))
    )
    run(runtime, segment("c", (1,), 7, (9,)), segment("b", PROMPT[18:19], 18, (2, 3)))
    last = run(runtime, segment("b", PROMPT[19:20], 19, (2, 3)), segment("c", (2,), 8, (9,)))[0]
    after = run(runtime, segment("c", (3, 4), 9, (9,)), segment("b", (33,), 20, (2, 3)))[1]
    assert (last == solo[0]).all()
    assert (after == solo[1]).all()


def test_a_shared_prefix_is_a_copy_with_the_same_bits(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    own = run(runtime, segment("a", (3,), 40, (4, 2, 9)), keep=False)
    run(runtime, segment("b", PROMPT[32:], 32, (4, 2, 7)))
    both = run(runtime, segment("a", (5,), 40, (4, 2, 9)), segment("b", (3,), 40, (4, 2, 7)))
    np.testing.assert_allclose(both[1], own[0], rtol=1e-4, atol=1e-4)


def test_a_failed_step_changes_nothing(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    run(runtime, segment("a", VOCAB_PROMPT, 0, (0,)))
    expected = run(runtime, segment("a", (33,), 11, (0,)), keep=False)
    with pytest.raises(StepFailed, match=r"graph .* failed"):
        run(runtime, segment("a", (7,), 11, (0,)), segment("b", (10**6,), 0, (1,)))  # an id beyond the vocabulary
    assert (run(runtime, segment("a", (33,), 11, (0,))) == expected).all()


def test_a_sequence_that_outgrows_its_cache_moves_alone(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    blocks = tuple(range(8))
    run(runtime, segment("a", PROMPT, 0, blocks))
    assert runtime.relayouts == 0
    for start in (40, 80):
        last = run(runtime, segment("a", PROMPT, start, blocks))
    assert runtime.relayouts > 0
    whole = run(runtime, segment("b", (*PROMPT, *PROMPT[:24]), 0, tuple(range(20, 28))))
    rest = run(runtime, segment("b", (*PROMPT[24:], *PROMPT), 64, tuple(range(20, 28))))
    assert whole.shape == rest.shape
    np.testing.assert_allclose(rest, last, rtol=1e-4, atol=1e-4)


def test_rows_that_are_not_finite_are_named_and_no_others(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    run(runtime, segment("a", VOCAB_PROMPT, 0, (0,)), segment("b", OTHER, 0, (1,)))
    assert runtime.non_finite_rows(np.arange(18)).tolist() == []
    (_, first), (_, second) = runtime._caches.last
    first.keys[1, 0, 0, 3, 5] = np.nan
    second.values[0, 0, 1, 6, 2] = np.inf
    assert runtime.non_finite_rows(np.arange(18)).tolist() == [3, 17]
    assert runtime.non_finite_rows(np.array([17])).tolist() == [17]


def test_steps_are_timed_without_leaving_caches(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"), rows=16)
    assert {shape.rows for shape in measure(runtime, quiet_clock(0.01)).times} == {1, 8, 16}
    assert owners(runtime._caches) == []


def test_close_and_open_again(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"))
    expected = run(runtime, segment("a", VOCAB_PROMPT, 0, (0,)))
    runtime.close()
    assert (run(open_segments(bundles("segments")), segment("a", VOCAB_PROMPT, 0, (0,))) == expected).all()


@pytest.mark.parametrize(("layout", "most"), [(INT8_CACHES, 5e-3), (HALF_CACHES, 1e-5)])
@pytest.mark.parametrize("first", [1, 8, 9, 16, 39])
def test_chunks_over_rounded_caches_are_the_whole_within_rounding(
    bundles: Bundles, layout: str, most: float, first: int
) -> None:
    """Fresh rows are attended to as what their codes stand for, so a later chunk sees the same."""
    runtime = open_segments(bundles(layout))
    whole = run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    run(runtime, segment("b", PROMPT[:first], 0, (1, 3, 5)))
    halved = run(runtime, segment("b", PROMPT[first:], first, (1, 3, 5)))
    np.testing.assert_allclose(halved, whole, atol=most * np.abs(whole).max())


@pytest.mark.parametrize("count", [1, 2, 8, 9])
def test_few_rows_at_a_time_over_int8_caches_are_the_whole_prompt(bundles: Bundles, count: int) -> None:
    """Codes and logits: one graph writes in place, the other gives codes that the runtime writes."""
    runtime = open_segments(bundles(INT8_CACHES))
    whole = run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    for start in range(0, 40, count):
        last = run(runtime, segment("b", PROMPT[start : start + count], start, (1, 3, 5)))
    np.testing.assert_allclose(last, whole, atol=5e-3 * np.abs(whole).max())
    first, second = owners(runtime._caches)
    for mine, theirs in ((first.keys, second.keys), (first.values, second.values)):
        assert mine.dtype == np.int8
        steps = np.abs(mine[..., :40, :].astype(int) - theirs[..., :40, :])
        assert steps.max() <= 1 and np.count_nonzero(steps) < 0.01 * steps.size


@pytest.mark.parametrize(("layout", "share", "most"), [(INT8_CACHES, 4, 0.1), (HALF_CACHES, 2, 1e-3)])
def test_rounded_caches_are_near_float_ones_in_less_memory(
    bundles: Bundles, layout: str, share: int, most: float
) -> None:
    rounded, floats = (open_segments(bundles(each)) for each in (layout, "segments"))
    text = tuple(b"What does the keeper of a lighthouse write down?"[:40])
    near, exact = (run(runtime, segment("a", text, 0, (4, 2, 9))) for runtime in (rounded, floats))
    assert 0 < np.abs(near - exact).max() < most * np.abs(exact).max()
    ((small,), (large,)) = (owners(runtime._caches) for runtime in (rounded, floats))
    assert share * small.keys.nbytes == large.keys.nbytes and share * small.values.nbytes == large.values.nbytes


@pytest.mark.parametrize("layout", [INT8_CACHES, HALF_CACHES])
def test_prompts_and_decodes_share_a_step_over_rounded_caches(bundles: Bundles, layout: str) -> None:
    """Both graphs in one step; the scratch of codes is every chunk's in turn."""
    runtime = open_segments(bundles(layout))
    solo = [run(runtime, segment("a", VOCAB_PROMPT, 0, (0,))), run(runtime, segment("d", PROMPT, 0, (20, 21, 22)))]
    solo.append(run(runtime, segment("a", (33,), len(VOCAB_PROMPT), (0,)), keep=False))
    mixed = run(
        runtime,
        segment("c", PROMPT, 0, (5, 6, 7)),
        segment("b", VOCAB_PROMPT, 0, (2,)),
        segment("a", (33,), len(VOCAB_PROMPT), (0,)),
    )
    for found, expected in zip(mixed, (solo[1][0], solo[0][0], solo[2][0]), strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-3 * np.abs(expected).max())
    after = run(runtime, segment("c", (3,), 40, (5, 6, 7)), segment("d", (3,), 40, (20, 21, 22)))
    np.testing.assert_allclose(after[0], after[1], atol=5e-3 * np.abs(after[1]).max())


def test_a_shared_prefix_of_int8_caches_is_a_copy(bundles: Bundles) -> None:
    runtime = open_segments(bundles(INT8_CACHES))
    run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    run(runtime, segment("b", PROMPT[32:], 32, (4, 2, 7)))
    owner, sharer = owners(runtime._caches)
    assert (owner.keys[..., :32, :] == sharer.keys[..., :32, :]).all()
    assert (owner.values[..., :32, :] == sharer.values[..., :32, :]).all()
    runtime.blocks.offload(slice(64, 80), b"block")
    runtime.blocks.load(slice(160, 176), b"block")
    both = run(runtime, segment("a", (3,), 40, (4, 2, 9)), segment("b", (3,), 40, (4, 2, 7)))
    np.testing.assert_allclose(both[1], both[0], atol=5e-3 * np.abs(both[0]).max())


@pytest.mark.parametrize(("side", "number"), [("key", np.nan), ("value", np.inf), ("value", -np.inf)])
def test_rows_that_int8_caches_cannot_show_as_not_finite(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch, side: str, number: float
) -> None:
    """They are seen where they are computed, in the last layer too, and forgotten with the next step."""
    runtime = open_segments(bundles(INT8_CACHES))
    parts = runtime._chain.layers(18)

    def spoil() -> None:
        parts[-1].session.run_with_iobinding(parts[-1].binding)
        runtime._rows.rows(side, 18)[0, 13, 5] = number

    spoiled = SimpleNamespace(run=spoil)
    monkeypatch.setattr(runtime._chain, "layers", lambda rows: [*parts[:-1], spoiled])
    run(runtime, segment("a", VOCAB_PROMPT, 0, (0,)), segment("b", OTHER, 0, (1,)))
    assert runtime.non_finite_rows(np.arange(18)).tolist() == [13]
    assert runtime.non_finite_rows(np.array([12, 14])).tolist() == []
    monkeypatch.undo()
    run(runtime, segment("a", VOCAB_PROMPT, 0, (0,)), segment("b", OTHER, 0, (1,)))
    assert runtime.non_finite_rows(np.arange(18)).tolist() == []


def test_sums_that_are_too_large_are_no_rows_that_are_not_finite() -> None:
    buffers = RowBuffers(smallest_manifest(), 4)
    rows = NonFiniteRows(buffers, 0.0)
    rows.start(3)
    buffers.rows("key", 3)[...] = 3e38
    with np.errstate(over="ignore"):
        rows.look()
    assert rows.among(np.arange(3)).tolist() == []


def test_keys_beyond_float16_are_its_largest_and_no_infinity(bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a prompt, which a graph stores, and in a decode, which is copied."""
    runtime = open_segments(bundles(HALF_CACHES))
    layers, sizes = runtime._chain.layers, {"key": 1e6, "value": -1e6}

    def spoiled(rows: int) -> list[SimpleNamespace]:
        def run_part(part: Binding) -> None:
            part.run()
            for name, size in sizes.items():
                runtime._rows.rows(name, rows)[0, -1, 3] = size

        return [SimpleNamespace(run=partial(run_part, part)) for part in layers(rows)]

    monkeypatch.setattr(runtime._chain, "layers", spoiled)
    run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    run(runtime, segment("a", (1, 2), 40, (4, 2, 9)))
    assert runtime.non_finite_rows(np.arange(2)).tolist() == []
    (cache,) = owners(runtime._caches)
    for column in (39, 41):
        assert cache.keys[0, 0, 0, column, 3] == 65504 and cache.values[1, 0, 0, column, 3] == -65504


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_rows_over_float16_caches_that_are_not_finite_are_named(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    runtime = open_segments(bundles(HALF_CACHES))
    run(runtime, segment("a", PROMPT, 0, (4, 2, 9)))
    *parts, last = runtime._chain.layers(2)

    def spoil() -> None:
        last.run()
        runtime._rows.rows("value", 2)[0, 1, 5] = float(kind)

    monkeypatch.setattr(runtime._chain, "layers", lambda rows: [*parts, SimpleNamespace(run=spoil)])
    run(runtime, segment("a", (1, 2), 40, (4, 2, 9)), keep=False)
    assert runtime.non_finite_rows(np.arange(2)).tolist() == [1]


def test_steps_over_int8_caches_are_timed(bundles: Bundles) -> None:
    runtime = open_segments(bundles(INT8_CACHES), rows=16)
    assert {shape.rows for shape in measure(runtime, quiet_clock(0.01)).times} == {1, 8, 16}
    assert owners(runtime._caches) == []
