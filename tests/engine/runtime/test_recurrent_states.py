"""States of recurrent layers: when one counts, which memory is used again, and what a snapshot is."""

import numpy as np
import pytest

from engine.bundle.specs import RecurrentSpec
from engine.bundle.variant import StepShape
from engine.errors import StepFailed
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.recurrent import RecurrentState, RecurrentStates
from tests.engine.runtime.held import state_bytes

SPEC = RecurrentSpec(layers=(0, 1), key_heads=1, value_heads=2, key_dim=2, value_dim=3, kernel=4)
Rows = tuple[str, int, int]  # a sequence, its past, its rows


@pytest.fixture
def states() -> RecurrentStates:
    return RecurrentStates(SPEC)


def batch_of(*items: Rows, key: bytes = b"", snapshots: tuple[tuple[int, bytes], ...] = ()) -> PackedBatch:
    segments, start = [], 0
    for owner, past, count in items:
        segments.append(PackedSegment(start, count, (0,), past, 99, False, "", owner, key, snapshots))
        start += count
    zeros = np.zeros(start, np.int32)
    return PackedBatch(StepShape(start, 64), zeros, zeros, np.zeros(0, np.int64), tuple(segments), 16)


def run(states: RecurrentStates, batch: PackedBatch, kept: int | None = None) -> list[RecurrentState]:
    """Every step adds its rows to what it read; the states after the segments."""
    steps = states.begin(batch)
    for own in steps:
        for step in own:
            step.target.memories[...] = step.source.memories + step.count
            step.target.tails[...] = step.source.tails - step.count
    states.keep(range(batch.shape.rows if kept is None else kept))
    return [own[-1].target for own in steps]


def value(state: RecurrentState) -> int:
    assert (state.memories == state.memories.flat[0]).all() and (state.tails == -state.memories.flat[0]).all()
    return int(state.memories.flat[0])


def test_shapes_and_an_empty_beginning(states: RecurrentStates) -> None:
    ((step,),) = states.begin(batch_of(("a", 0, 3)))
    assert step.source.memories.shape == (2, 1, 2, 2, 3) and step.source.tails.shape == (2, 1, 10, 3)
    assert not step.source.memories.any() and not step.source.tails.any()
    assert step.source.tails.nbytes + step.source.memories.nbytes == SPEC.state_bytes == 4 * 2 * (2 * 2 * 3 + 10 * 3)


def test_a_sequence_goes_on_from_where_it_was_with_two_states_in_turn(states: RecurrentStates) -> None:
    used = [run(states, batch_of(("a", past, count)))[0] for past, count in ((0, 5), (5, 1), (6, 1), (7, 1), (8, 2))]
    assert value(used[-1]) == 10 and used[-1].tokens == 10
    assert len({id(state) for state in used}) == 2 and used[0] is used[2]


def test_what_is_not_kept_has_changed_nothing(states: RecurrentStates) -> None:
    (before,) = run(states, batch_of(("a", 0, 5)))
    for _ in range(3):
        run(states, batch_of(("a", 5, 4)), kept=0)
        run(states, batch_of(("a", 5, 4)), kept=3)  # a part of the rows is no state
        states.begin(batch_of(("a", 5, 4)))  # and a step that fails is not kept at all
        assert value(before) == 5
    assert value(run(states, batch_of(("a", 5, 1)))[0]) == 6


def test_rows_may_be_kept_in_two_goes(states: RecurrentStates) -> None:
    run(states, batch_of(("a", 0, 4)), kept=3)
    states.keep([3])
    assert value(run(states, batch_of(("a", 4, 1)))[0]) == 5


def test_sequences_of_a_step_have_their_own(states: RecurrentStates) -> None:
    run(states, batch_of(("a", 0, 5), ("b", 0, 7)))
    run(states, batch_of(("b", 7, 1), ("a", 5, 1)))
    assert [value(state) for state in run(states, batch_of(("a", 6, 1), ("b", 8, 2)))] == [7, 10]


def test_a_sequence_begins_at_a_snapshot_inside_the_rows_of_another(states: RecurrentStates) -> None:
    ends = run(states, batch_of(("a", 0, 40), snapshots=((16, b"x"), (32, b"y"))))
    assert value(ends[0]) == 40
    for owner, past, key, after in (("b", 16, b"x", 21), ("c", 32, b"y", 37), ("d", 16, b"x", 21)):
        assert value(run(states, batch_of((owner, past, 5), key=key))[0]) == after
        assert value(run(states, batch_of((owner, past + 5, 1)))[0]) == after + 1
    assert value(run(states, batch_of(("e", 16, 1), key=b"x"))[0]) == 17  # nobody has written it


def test_a_snapshot_at_the_last_row_is_where_the_sequence_is_and_stays(states: RecurrentStates) -> None:
    run(states, batch_of(("a", 0, 15)))
    (at_border,) = run(states, batch_of(("a", 15, 1), snapshots=((1, b"x"),)))
    for past in range(16, 20):
        run(states, batch_of(("a", past, 1)))
    assert value(at_border) == 16
    assert value(run(states, batch_of(("b", 16, 2), key=b"x"))[0]) == 18


def test_only_snapshots_before_the_last_kept_row_are_taken(states: RecurrentStates) -> None:
    run(states, batch_of(("a", 0, 40), snapshots=((16, b"x"), (32, b"y"))), kept=20)
    assert value(run(states, batch_of(("b", 16, 1), key=b"x"))[0]) == 17
    with pytest.raises(StepFailed, match="c has no state of its first 32 tokens"):
        states.begin(batch_of(("c", 32, 1), key=b"y"))


@pytest.mark.parametrize(("owner", "past", "key"), [("b", 5, b""), ("a", 4, b""), ("a", 6, b""), ("c", 5, b"z")])
def test_nobody_begins_without_a_state(states: RecurrentStates, owner: str, past: int, key: bytes) -> None:
    run(states, batch_of(("a", 0, 5)))
    with pytest.raises(StepFailed, match=f"{owner} has no state of its first {past} tokens"):
        states.begin(batch_of((owner, past, 1), key=key))


def test_rows_that_nobody_asks_for_begin_anywhere(states: RecurrentStates) -> None:
    assert value(run(states, batch_of(("", 20, 1), ("", 30, 1)))[1]) == 1


def test_what_nobody_kept_is_written_again(states: RecurrentStates) -> None:
    """As when steps are timed: rows that nobody asks for take no new memory with every step."""
    first, second = ([own[-1].target for own in states.begin(batch_of(("", 20, 1), ("", 30, 1)))] for _ in range(2))
    assert [id(state) for state in first] == [id(state) for state in second] and first[0] is not first[1]
    (kept,) = run(states, batch_of(("a", 0, 5)))
    (lost,) = run(states, batch_of(("a", 5, 4)), kept=0)
    (again,) = run(states, batch_of(("a", 5, 1)))
    assert again is lost is not kept and value(again) == 6
    ((shared, _),) = states.begin(batch_of(("a", 6, 9), snapshots=((4, b"x"),)))
    states.keep(range(5))  # the snapshot counts, the rest does not
    assert shared.target not in [own[-1].target for own in states.begin(batch_of(("a", 6, 9), ("b", 0, 2)))]


def test_memory_is_given_back(states: RecurrentStates) -> None:
    one = SPEC.state_bytes
    assert state_bytes(states) == one  # the empty state
    for past, count in ((0, 20), (20, 1), (21, 1)):
        run(states, batch_of(("a", past, count), snapshots=((16, b"x"),) if not past else ()))
    assert state_bytes(states) == one * (1 + 2 + 1)
    states.forget(["a", "unknown"], [])
    assert state_bytes(states) == one * 2
    states.forget([], [b"x", b"unknown"])
    assert state_bytes(states) == one


def test_an_id_that_is_used_again_begins_anew(states: RecurrentStates) -> None:
    run(states, batch_of(("a", 0, 5)))
    assert value(run(states, batch_of(("a", 0, 3)))[0]) == 3
