"""Sequences with recurrent layers: where snapshots are taken, who begins at one, and what is given back."""

import pytest

from engine.core.plan import StepPlan, StepResult
from engine.core.sequence import SequenceStatus
from tests.engine.worker.recurrent_runtime import RecurrentFake
from tests.engine.worker.simulation import Simulation, by_hand, segmented, simulate


def world_of(rows: int = 64, columns: int = 2048, snapshots: int = 20, **rules: object) -> Simulation:
    return simulate(segmented(rows, columns), is_recurrent=True, state_snapshots=snapshots, **rules)


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((index * 7 + salt * 3) % 50 for index in range(length))


def snapshots_of(world: Simulation) -> int:
    assert isinstance(world.runtime, RecurrentFake)
    kept = world.runtime.states._snapshots
    assert set(kept) == set(world.scheduler.states._snapshots._keys)
    return len(kept)


def next_plan(world: Simulation) -> StepPlan:
    plan = world.scheduler.plan()
    assert plan is not None
    return plan


@pytest.mark.parametrize(
    ("length", "offsets"), [(15, ()), (16, (16,)), (17, (16,)), (40, (32,)), (48, (32, 48)), (49, (48,))]
)
def test_a_prompt_leaves_a_snapshot_at_its_last_border(length: int, offsets: tuple[int, ...]) -> None:
    """An equal prompt may share up to the border before its last token; a longer one up to the last of all."""
    world = world_of()
    world.submit("a", prompt(length), 1)
    (segment,) = next_plan(world).segments
    assert tuple(rows for rows, _ in segment.snapshots) == offsets
    assert [key for _, key in segment.snapshots] == [segment.sequence.keys[rows // 16 - 1] for rows in offsets]


def test_a_long_prompt_leaves_one_every_256_tokens_however_it_is_cut() -> None:
    world = world_of(rows=100)
    world.submit("a", prompt(700), 1)
    world.run()
    taken = [
        segment.past + rows
        for batch in world.runtime.steps
        for segment in batch.segments
        for rows, _ in segment.snapshots
    ]
    assert taken == [256, 512, 688]
    assert snapshots_of(world) == 3


def test_an_answer_moves_its_snapshot_along() -> None:
    """Its last two borders have one; those of the prompt stay."""
    world = world_of()
    world.submit("a", prompt(40), 60)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(40), 60)
    assert snapshots_of(world) == 3  # of 32, 80 and 96 tokens
    world.submit("b", (*prompt(40), *world.outputs["a"], 1, 2, 3), 5)
    world.run()
    assert world.cached["b"] == 96
    assert world.outputs["b"] == by_hand((*prompt(40), *world.outputs["a"], 1, 2, 3), 5)


def test_a_prefix_is_shared_up_to_its_last_snapshot() -> None:
    world = world_of(rows=1000)
    world.submit("a", prompt(600), 1)
    world.run()
    for name, own, cached in (("b", 599, 592), ("c", 560, 512), ("d", 300, 256), ("e", 200, 0)):
        text = prompt(own) + (49, 48, 47) * 3
        world.submit(name, text, 5)
        world.run()
        assert (world.outputs[name], world.cached[name]) == (by_hand(text, 5), cached)


def test_siblings_wait_for_a_snapshot_that_will_come_and_for_no_other() -> None:
    world = world_of(rows=64)
    shared = prompt(300)
    world.submit("a", shared, 3)
    world.submit("b", (*shared, 1, 2), 3)  # goes on at 288
    world.submit("c", prompt(120) + (9,) * 40, 3)  # shares what gets no snapshot: nothing to wait for
    world.step()
    waiting = [item.id for item in world.scheduler.sequences() if item.status is SequenceStatus.WAITING]
    assert waiting == ["b"]
    world.run()
    assert world.cached == {"a": 0, "b": 288, "c": 0}
    assert world.outputs["b"] == by_hand((*shared, 1, 2), 3)


def test_equal_prompts_are_computed_once() -> None:
    world = world_of(rows=64)
    for name in ("a", "b", "c"):
        world.submit(name, prompt(100), 8)
    world.run()
    assert [world.cached[name] for name in ("a", "b", "c")] == [0, 96, 96]
    assert all(world.outputs[name] == by_hand(prompt(100), 8) for name in ("a", "b", "c"))


def test_a_preempted_sequence_goes_on_at_its_last_border() -> None:
    world = world_of(rows=16, columns=192)
    for name, salt in (("a", 0), ("b", 1)):
        world.submit(name, prompt(40, salt), 60)
    world.run()
    assert world.scheduler.counters.preemptions > 0
    for name, salt in (("a", 0), ("b", 1)):
        assert world.outputs[name] == by_hand(prompt(40, salt), 60)
    begun = [
        segment.past
        for batch in world.runtime.steps
        for segment in batch.segments
        if segment.owner == "b" and segment.state_key
    ]
    assert begun and min(begun) >= 64


def test_a_snapshot_that_somebody_is_about_to_begin_at_is_not_dropped() -> None:
    """With room for one: it is another's turn to take one after the newcomer was let in, and before its first rows."""
    world = world_of(rows=16, snapshots=1)
    world.submit("a", prompt(33), 1)
    world.run()
    world.submit("first", prompt(60, salt=2), 4)
    world.submit("b", (*prompt(33), 1, 2, 3), 4)
    world.run()
    assert world.cached["b"] == 32 and world.failures == {}
    assert world.outputs["b"] == by_hand((*prompt(33), 1, 2, 3), 4)
    world.submit("c", prompt(20, salt=3), 1)
    world.run()
    assert snapshots_of(world) == 1


def test_a_failed_step_and_an_abort_leave_nothing_behind() -> None:
    world = world_of(rows=64)
    world.submit("a", prompt(40), 5)
    world.submit("b", prompt(40, 1), 5)
    world.runtime.fail_at = 0
    world.step()
    assert set(world.failures) == {"a", "b"} and snapshots_of(world) == 0
    world.submit("a", prompt(40), 5)
    world.step()
    world.loop.abort("a")
    assert isinstance(world.runtime, RecurrentFake)
    assert not world.runtime.states._current and not world.runtime.states._spare
    world.submit("a", prompt(40), 5)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(40), 5) and world.cached["a"] == 32


def test_states_of_the_ended_are_given_back_after_the_step_that_ends_them() -> None:
    world = world_of()
    for name, salt in (("a", 0), ("b", 1), ("c", 2)):
        world.submit(name, prompt(20, salt), 3 + salt)
    world.run()
    assert isinstance(world.runtime, RecurrentFake)
    assert not world.runtime.states._current and not world.runtime.states._spare


@pytest.mark.parametrize("rules", [{"state_snapshots": 0}, {"prefix_cache": False, "state_snapshots": 0}])
def test_without_snapshots_every_prompt_is_computed(rules: dict[str, object]) -> None:
    world = simulate(segmented(64, 512), is_recurrent=True, **rules)
    for name in ("a", "b"):
        world.submit(name, prompt(40), 4)
        world.run()
        assert world.cached[name] == 0 and world.outputs[name] == by_hand(prompt(40), 4)


def test_a_sequence_that_was_not_sampled_keeps_nothing_of_its_rows() -> None:
    """Its last row is computed again, and a state has no part before that row."""
    world = world_of()
    world.submit("a", prompt(20), 4)
    plan = next_plan(world)
    (update,) = world.scheduler.commit(plan, StepResult({}, deferred={"a"}))
    assert (update.kept_rows, update.sequence.computed) == (0, 0)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(20), 4)


def test_the_tokens_of_an_earlier_worker_are_computed_and_not_repeated() -> None:
    world, whole = world_of(), by_hand(prompt(40), 30)
    world.submit("a", prompt(40), 30, emitted=tuple(whole[:20]))
    world.run()
    assert world.outputs["a"] == whole
