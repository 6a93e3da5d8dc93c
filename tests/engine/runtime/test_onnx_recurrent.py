"""Tiny real graphs with recurrent layers: rows of several sequences in a step, each over a state of its own."""

from dataclasses import replace

import numpy as np
import pytest

from engine.bundle.variant import StepShape
from engine.core.plan import Segment, StepPlan
from engine.errors import StepFailed
from engine.runtime.interface import pack
from engine.runtime.segmented import SegmentRuntime
from engine.worker.step_times import measure
from tests.engine.runtime.held import state_bytes
from tests.engine.runtime.test_onnx_runtime import segment
from tests.engine.runtime.test_onnx_segments import open_segments, run
from tests.engine.worker.quiet_clock import quiet_clock
from tests.hybrid import Hybrid, text_of

TEXT = text_of(60)
BLOCKS = (4, 2, 9, 7)


@pytest.fixture
def runtime(hybrid: Hybrid) -> SegmentRuntime:
    return open_segments(hybrid.bundle)


def rows_of(name: str, first: int, end: int, blocks: tuple[int, ...] = BLOCKS, **fields: object) -> Segment:
    """Rows of TEXT, all with logits."""
    made = segment(name, TEXT[first:end], first, blocks, end - first)
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_text_in_one_step_is_transformers_(hybrid: Hybrid, runtime: SegmentRuntime) -> None:
    np.testing.assert_allclose(run(runtime, rows_of("a", 0, 60)), hybrid.logits(TEXT), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("cuts", [(1,), (16,), (59,), (3, 4, 5, 6), tuple(range(1, 60))])
def test_any_cut_gives_the_same(runtime: SegmentRuntime, cuts: tuple[int, ...]) -> None:
    whole = run(runtime, rows_of("a", 0, 60))
    edges = (0, *cuts, 60)
    pieces = [run(runtime, rows_of("b", *edges[at : at + 2], (1, 3, 5, 6))) for at in range(len(edges) - 1)]
    np.testing.assert_allclose(np.concatenate(pieces), whole, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("offsets", [(16,), (16, 32, 48), (60,), (1, 2)])
def test_snapshots_change_nothing_and_others_begin_there(runtime: SegmentRuntime, offsets: tuple[int, ...]) -> None:
    whole = run(runtime, rows_of("a", 0, 60))
    keys = tuple((offset, bytes([offset])) for offset in offsets)
    cut = run(runtime, rows_of("b", 0, 60, (1, 3, 5, 6), snapshots=keys))
    np.testing.assert_allclose(cut, whole, rtol=1e-4, atol=1e-3)
    for offset in offsets:
        if offset < 60:
            rest = run(runtime, rows_of("c", offset, 60, (1, 3, 5, 6), state_key=bytes([offset])))
            np.testing.assert_allclose(rest, whole[offset:], rtol=1e-4, atol=1e-3)


def test_sequences_of_one_step_do_not_mix(runtime: SegmentRuntime) -> None:
    alone = [run(runtime, rows_of(name, 0, end, (block,))) for name, end, block in (("a", 9, 4), ("b", 5, 2))]
    both = run(runtime, rows_of("c", 0, 9, (5,)), rows_of("d", 0, 5, (6,)))
    np.testing.assert_allclose(both, np.concatenate(alone), rtol=1e-4, atol=1e-3)
    next_two = run(runtime, rows_of("d", 5, 6, (6,)), rows_of("c", 9, 10, (5,)))
    turned = run(runtime, rows_of("a", 9, 10, (4,)), rows_of("b", 5, 6, (2,)))
    np.testing.assert_allclose(next_two, turned[::-1], rtol=1e-4, atol=1e-3)


def test_a_step_that_is_not_kept_has_changed_nothing(runtime: SegmentRuntime) -> None:
    run(runtime, rows_of("a", 0, 20))
    first = run(runtime, rows_of("a", 20, 30), keep=False)
    for count in (7, 1, 10):
        again = run(runtime, rows_of("a", 20, 20 + count), keep=count == 10)
        np.testing.assert_allclose(again, first[:count], rtol=1e-4, atol=1e-3)
    assert (again == first).all()


def test_rows_without_a_state_fail_the_step(runtime: SegmentRuntime) -> None:
    run(runtime, rows_of("a", 0, 20))
    with pytest.raises(StepFailed, match="b has no state of its first 20 tokens"):
        run(runtime, rows_of("b", 20, 21))
    with pytest.raises(StepFailed, match="a has no state of its first 16 tokens"):
        run(runtime, rows_of("a", 16, 21))


def test_rows_that_see_both_ways_are_refused(runtime: SegmentRuntime) -> None:
    batch = pack(StepPlan(StepShape(4, 64), (rows_of("a", 0, 4),)), 16)
    wide = replace(batch, segments=tuple(replace(item, block_rows=2) for item in batch.segments))
    with pytest.raises(StepFailed, match="no graph for rows that see both ways"):
        runtime.run(wide)


def test_a_step_is_timed_by_part(runtime: SegmentRuntime) -> None:
    run(runtime, rows_of("a", 0, 20))
    assert set(runtime.part_seconds) == {"inputs", "linear", "attention", "recurrent", "head"}


def test_states_of_the_ended_are_given_back(runtime: SegmentRuntime) -> None:
    assert runtime._recurrent is not None
    states = runtime._recurrent.states
    one = state_bytes(states)
    run(runtime, rows_of("a", 0, 20))
    run(runtime, rows_of("a", 20, 21))
    assert state_bytes(states) == 3 * one
    runtime.forget_states(["a"], [])
    assert state_bytes(states) == one


def test_measuring_needs_no_sequence_and_leaves_none(runtime: SegmentRuntime) -> None:
    assert runtime._recurrent is not None
    times = measure(runtime, quiet_clock(0.001)).times
    assert times and not runtime._recurrent.states._current


def test_damage_in_a_recurrent_layer_shows_in_the_next_keys(runtime: SegmentRuntime) -> None:
    """A state with a NaN is not looked at: whatever comes of it reaches a layer with keys, and those are."""
    run(runtime, rows_of("a", 0, 20), rows_of("b", 0, 8, (1,)))
    assert runtime._recurrent is not None
    runtime._recurrent.states._current["a"].memories[-1, 0, 0, 0, 0] = np.nan
    run(runtime, rows_of("a", 20, 21), rows_of("b", 8, 9, (1,)), keep=False)
    assert runtime.non_finite_rows(np.arange(2)).tolist() == [0]
