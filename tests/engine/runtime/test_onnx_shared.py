"""Tiny real graphs: sequences upon one base, and rows that see both ways."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.segments import BASE_ATTENTION, MASKED_ATTENTION
from engine.bundle.variant import ShapeTable, StepShape
from engine.core.plan import Segment, StepPlan
from engine.errors import StepFailed
from engine.runtime.attention import Cache
from engine.runtime.interface import Runtime, pack
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.segmented import LEAST_SHARED, SegmentRuntime
from engine.runtime.sessions import cpu_provider
from tests.bundles import Bundles
from tests.engine.runtime.held import held_bytes
from tests.engine.runtime.older import without_graphs
from tests.engine.runtime.test_onnx_runtime import OTHER, segment
from tests.engine.runtime.test_onnx_segments import HALF_CACHES, INT8_CACHES, open_segments, run

PREFIX = tuple((i * 31 + 7) % 256 for i in range(160))
BLOCKS = tuple(range(10))
LAYOUTS = ("segments", INT8_CACHES, HALF_CACHES)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    """Float32 caches, int8 and float16 ones."""
    return str(request.param)


@pytest.fixture
def copying(bundles: Bundles, layout: str, tmp_path: Path) -> Path:
    """The bundle as it was compiled before there were bases."""
    return without_graphs(bundles(layout), tmp_path / "copying", BASE_ATTENTION, MASKED_ATTENTION)


def caches_of(runtime: SegmentRuntime) -> list[Cache]:
    return [cache for _, cache in runtime._caches.last]


def prefill(runtime: SegmentRuntime, name: str, blocks: tuple[int, ...], tokens: tuple[int, ...] = PREFIX) -> None:
    for start in range(0, len(tokens), 64):
        run(runtime, segment(name, tokens[start : start + 64], start, blocks))


def own(runtime: SegmentRuntime) -> None:
    """A sequence that goes on behind the prefix, in a block of its own."""
    run(runtime, segment("a", (*PREFIX, 33), 0, (*BLOCKS, 20)))


def story(runtime: SegmentRuntime) -> np.ndarray:
    """Logits of steps that mix an owner, sharers of 160 and of 144 columns, a chunk of 70 rows and a stranger."""
    prefill(runtime, "a", (*BLOCKS, 20))
    run(runtime, segment("x", OTHER, 0, (30,)))
    run(runtime, segment("a", (3,), 160, (*BLOCKS, 20)))
    second, third, chunk = (*BLOCKS, 21, 25), (*BLOCKS[:9], 22), tuple((i * 7) % 256 for i in range(70))
    long = (*BLOCKS, 40, 41, 42, 43, 44)
    logits = [run(runtime, segment("b", (9, 8, 7), 160, second), segment("a", (5,), 161, (*BLOCKS, 20)))]
    logits.append(
        run(
            runtime,
            segment("l", chunk, 160, long),
            segment("b", (1,), 163, second),
            segment("x", (4,), 7, (30,)),
            segment("c", (6, 2), 144, third),
        )
    )
    decodes = ("x", 8, (30,)), ("a", 162, (*BLOCKS, 20)), ("b", 164, second), ("c", 146, third), ("l", 230, long)
    for step in range(3):
        logits.append(run(runtime, *[segment(name, (step,), past + step, blocks) for name, past, blocks in decodes]))
    return np.concatenate(logits)


def close(layout: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the order of sums; over rounded caches that turns a rare code by one step."""
    if layout != "segments":
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_sequences_upon_a_base_give_what_they_give_with_copies(bundles: Bundles, layout: str, copying: Path) -> None:
    sharing, plain = open_segments(bundles(layout), 256), open_segments(copying, 256)
    close(layout, story(sharing), story(plain))
    stranger, *others = caches_of(sharing)
    assert stranger.base is None and len({id(cache.base) for cache in others}) == 1 and others[0].base is not None
    assert [cache.base_columns for cache in others] == [160, 160, 144, 160]
    assert {cache.base for cache in caches_of(plain)} == {None}


def grown(runtime: SegmentRuntime) -> tuple[np.ndarray, list[bool]]:
    """Logits of one of two sharers, whose answer becomes long; and of each step whether it stands on a base."""
    prefill(runtime, "a", (*BLOCKS, 20))
    long = (*BLOCKS, *range(30, 60))
    logits = [run(runtime, segment("a", (5,), 160, (*BLOCKS, 20)), segment("b", (9,), 160, long))[1:]]
    stands = [caches_of(runtime)[-1].base is not None]
    for first in range(161, 545, 64):
        logits.append(run(runtime, segment("b", tuple((first + i) % 256 for i in range(64)), first, long)))
        stands.append(caches_of(runtime)[-1].base is not None)
    return np.concatenate(logits), stands


def test_a_sequence_leaves_a_base_that_it_outgrows(bundles: Bundles, layout: str, copying: Path) -> None:
    found, stands = grown(open_segments(bundles(layout), 256))
    close(layout, found, grown(open_segments(copying, 256))[0])
    assert stands == [True] * 5 + [False] * 2


def test_one_shape_gives_the_same_bits_whether_a_prefix_is_shared(bundles: Bundles, layout: str) -> None:
    runtime = open_segments(bundles(layout), pinned=32)
    for start in range(0, 160, 32):
        run(runtime, segment("a", PREFIX[start : start + 32], start, BLOCKS))
    own = run(runtime, segment("a", (9,), 160, (*BLOCKS, 20)))
    shared = run(runtime, segment("b", (9,), 160, (*BLOCKS, 21)), segment("c", (9,), 160, (*BLOCKS, 22)))
    assert (shared == own).all()
    assert {cache.base for cache in caches_of(runtime)} == {None}


def test_sixteen_over_a_thousand_tokens_take_less_than_three_times_the_memory_of_one(
    bundles: Bundles, layout: str
) -> None:
    runtime = open_segments(bundles(layout), 256)
    prompt, blocks = tuple((i * 13 + 5) % 256 for i in range(1000)), tuple(range(63))
    for start in range(0, 1000, 250):
        run(runtime, segment("0", prompt[start : start + 250], start, blocks))
    one = held_bytes(runtime._caches)
    choices = [(f"{i}", (*blocks[:62], *range(100 + 4 * i, 104 + 4 * i))) for i in range(1, 16)]
    run(runtime, *[segment(name, prompt[992:], 992, mine) for name, mine in choices])
    choices.insert(0, ("0", (*blocks, 80, 81)))
    for past in (1000, 1001):
        run(runtime, *[segment(name, (7,), past, mine) for name, mine in choices])
    assert len({id(cache.base) for cache in caches_of(runtime)}) == 1
    assert held_bytes(runtime._caches) < 3 * one


def both_ways(runtime: Runtime, shape: StepShape, *segments: Segment) -> np.ndarray:
    """Logits of a step whose last segment sees both ways; nothing is kept."""
    batch = pack(StepPlan(shape, segments), 16)
    last = replace(batch.segments[-1], block_rows=batch.segments[-1].count)
    return runtime.run(replace(batch, segments=(*batch.segments[:-1], last))).decoded().copy()


def in_pool(folder: Path, segments: Sequence[Segment], past: Segment) -> np.ndarray:
    runtime = OnnxRuntime(folder, load_manifest(folder), ShapeTable((), 256, 512), cpu_provider(1))
    batch = pack(StepPlan(StepShape(len(past.tokens), 512), (past,)), 16)
    runtime.run(batch)
    runtime.keep(np.arange(len(past.tokens)), np.array(past.targets, np.int64))
    return both_ways(runtime, StepShape(sum(len(item.tokens) for item in segments), 512), *segments)


def like_floats(layout: str, found: np.ndarray, expected: np.ndarray) -> None:
    """What float caches give; over others within what they round."""
    if layout != "segments":
        most = 0.1 if layout == INT8_CACHES else 2e-3
        assert 0 < np.abs(found - expected).max() < most * np.abs(expected).max()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("past", [1, 40, 160])
def test_rows_that_see_both_ways_are_those_of_the_pool_graph(bundles: Bundles, layout: str, past: int) -> None:
    block = tuple((i * 11 + 3) % 256 for i in range(75))
    blocks = tuple(range(15))
    before = segment("a", PREFIX[:past], 0, blocks)
    mixed = (segment("x", OTHER, 0, (30,), 7), segment("a", block, past, blocks, 75))
    runtime = open_segments(bundles(layout), 256)
    run(runtime, before)
    # What is not yet written may be anything.
    caches_of(runtime)[0].values[..., past:, :] = 127 if layout == INT8_CACHES else np.nan
    logits = both_ways(runtime, StepShape(82, 64), *mixed)
    like_floats(layout, logits, in_pool(bundles("free"), mixed, before))
    causal = run(runtime, *mixed, keep=False)
    close(layout, logits[:7], causal[:7])
    assert not np.allclose(logits[7:-1], causal[7:-1], atol=1e-2)


def test_rows_upon_a_base_may_see_both_ways(bundles: Bundles, layout: str) -> None:
    runtime = open_segments(bundles(layout), 256)
    own(runtime)
    block = segment("b", (9, 8, 7), 160, (*BLOCKS, 21), 3)
    logits = both_ways(runtime, StepShape(3, 64), block)
    assert caches_of(runtime)[0].base is not None
    like_floats(layout, logits, in_pool(bundles("free"), (block,), segment("a", PREFIX, 0, BLOCKS)))


def test_a_bundle_without_the_graph_for_it_says_so(copying: Path) -> None:
    with pytest.raises(StepFailed, match="no graph for rows that see both ways"):
        both_ways(open_segments(copying), StepShape(2, 64), segment("a", (1, 2), 0, (0,)))


def test_rows_that_were_not_kept_leave_nothing_that_spoils_the_next_step(bundles: Bundles, layout: str) -> None:
    runtime = open_segments(bundles(layout), 256)
    own(runtime)
    sharers = segment("b", (9, 8, 7), 160, (*BLOCKS, 21)), segment("c", (1,), 160, (*BLOCKS, 22))
    run(runtime, *sharers)
    expected = run(runtime, segment("b", (5,), 161, (*BLOCKS, 21)), keep=False)
    run(runtime, segment("b", (5, 6, 7), 161, (*BLOCKS, 21)), keep=False)
    (cache,) = caches_of(runtime)
    cache.values[..., 2:4, :] = 127 if layout == INT8_CACHES else np.nan
    cache.keys[..., 2:4, :] = -128 if layout == INT8_CACHES else np.inf
    assert (run(runtime, segment("b", (5,), 161, (*BLOCKS, 21)), keep=False) == expected).all()


def test_rows_upon_a_base_that_are_not_finite_are_named(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"), 256)
    own(runtime)
    run(runtime, segment("b", (9, 8, 7), 160, (*BLOCKS, 21)), segment("c", (1,), 160, (*BLOCKS, 22)), keep=False)
    caches_of(runtime)[0].keys[1, 0, 0, 2, 5] = np.nan
    assert runtime.non_finite_rows(np.arange(4)).tolist() == [2]


@pytest.mark.parametrize("side", ["key", "value"])
def test_rows_that_are_not_finite_are_named_though_their_codes_do_not_show_it(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    runtime = open_segments(bundles(INT8_CACHES), 256)
    own(runtime)
    sharers = segment("b", (9, 8, 7), 160, (*BLOCKS, 21)), segment("c", (1,), 160, (*BLOCKS, 22))
    expected = run(runtime, *sharers, keep=False)
    parts = runtime._chain.layers(4)

    def spoil() -> None:
        parts[-1].run()
        runtime._rows.rows(side, 4)[0, 2, 5] = np.nan

    monkeypatch.setattr(runtime._chain, "layers", lambda rows: [*parts[:-1], SimpleNamespace(run=spoil)])
    spoiled = run(runtime, *sharers, keep=False)
    assert runtime.non_finite_rows(np.arange(4)).tolist() == [2] and caches_of(runtime)[0].base is not None
    assert (spoiled[-1] == expected[-1]).all()


def test_a_failed_step_upon_a_base_changes_nothing(bundles: Bundles, layout: str) -> None:
    runtime = open_segments(bundles(layout), 256)
    own(runtime)
    run(runtime, segment("b", (9,), 160, (*BLOCKS, 21)), segment("c", (1,), 160, (*BLOCKS, 22)))
    decodes = segment("b", (5,), 161, (*BLOCKS, 21)), segment("c", (6,), 161, (*BLOCKS, 22))
    expected = run(runtime, *decodes, keep=False)
    with pytest.raises(StepFailed):
        run(runtime, segment("b", (10**6,), 161, (*BLOCKS, 21)), segment("c", (6,), 161, (*BLOCKS, 22)))
    assert (run(runtime, *decodes) == expected).all()


def test_a_run_that_is_not_worth_a_base_is_copied(bundles: Bundles, layout: str) -> None:
    runtime = open_segments(bundles(layout), 256)
    short = LEAST_SHARED // 16 - 1
    own(runtime)
    run(runtime, segment("b", (9,), 16 * short, (*BLOCKS[:short], 21)))
    assert caches_of(runtime)[0].base is None
