"""A draft model beside the real scheduler and loop: the tokens stay those of the definition, whatever it proposes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.variant import ShapeTable, StepShape
from engine.core.policy import CostTable, Share
from engine.core.speculation import TRIAL_GUESSES, GuessKind
from engine.errors import StepFailed
from engine.request import Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch
from engine.speculation.draft_models import DraftModel
from engine.speculation.draft_steps import DraftSteps
from tests.engine.fake_runtime import FakeRuntime
from tests.engine.runtime.held import owners
from tests.engine.worker.segmented_runtime import SegmentedFake
from tests.engine.worker.simulation import VOCAB, Simulation, by_hand, fixed, free, segmented, simulate

TARGET_MS = {StepShape(1, 64): 20.0, StepShape(4, 64): 26.0, StepShape(64, 64): 140.0}
CACHES = segmented(64, 512)
DRAFT_MS = {StepShape(1, 64): 2.0, StepShape(64, 64): 20.0}


class SometimesWrong(SegmentedFake):
    """Says something else after every n-th position; n = 1 is always wrong."""

    every = 3

    def run(self, batch: PackedBatch) -> Logits:
        logits = super().run(batch)
        values = np.array(logits.codes)
        for index, row in enumerate(batch.logit_rows):
            if batch.positions[row] % self.every == 0:
                values[index] = np.roll(values[index], 1)
        return Logits.of(values)


class AlwaysWrong(SometimesWrong):
    every = 1


def draft(
    shapes: ShapeTable = CACHES,
    runtime: type[FakeRuntime] = SegmentedFake,
    costs: dict[StepShape, float] = DRAFT_MS,
    max_context: int = 10**6,
    most: int = 4,
) -> DraftModel:
    ticks = iter(range(10**9))
    steps = DraftSteps(runtime(shapes, shapes.max_past, VOCAB), CostTable(costs), lambda: next(ticks) / 1e3)
    return DraftModel(steps, max_context, VOCAB, most)


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((salt * 13 + 7 * i) % 50 for i in range(length))


def world_with(drafter: DraftModel, shapes: ShapeTable = CACHES, **rules: object) -> Simulation:
    return simulate(shapes, costs=None if shapes.fixed else TARGET_MS, drafter=drafter, **rules)


def runtime_of(drafter: DraftModel) -> FakeRuntime:
    assert isinstance(drafter.steps._runtime, FakeRuntime)
    return drafter.steps._runtime


def test_a_draft_that_is_right_saves_steps() -> None:
    drafter = draft()
    world = world_with(drafter)
    world.submit("a", prompt(30), 101)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(30), 101)
    assert len(world.runtime.steps) <= 2 + 100 // 5
    counters = world.scheduler.counters
    assert counters.draft_rows == counters.draft_accepted == 101 - len(world.runtime.steps)
    assert world.tokens_per_step > 4.5
    # No row twice: the prompt, then two tokens and three of its own a step.
    assert sum(batch.shape.rows for batch in runtime_of(drafter).steps) <= 31 + 100


def test_a_draft_that_is_wrong_changes_nothing_and_is_given_up_but_tried_now_and_then() -> None:
    drafter = draft(runtime=AlwaysWrong)
    world = world_with(drafter)
    world.submit("a", prompt(30), 300)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(30), 300)
    counters = world.scheduler.counters
    assert counters.draft_accepted == 0
    assert 5 <= len({len(batch.segments) for batch in runtime_of(drafter).steps}) + counters.draft_rows <= 30


def test_a_draft_that_turns_wrong_is_left_alone() -> None:
    class Later(AlwaysWrong):
        def run(self, batch: PackedBatch) -> Logits:
            self.every = 1 if batch.positions.max() >= 100 else 10**6
            return super().run(batch)

    drafter = draft(runtime=Later)
    world = simulate(CACHES, costs={StepShape(1, 64): 20.0, StepShape(64, 64): 650.0}, drafter=drafter)
    world.submit("a", prompt(30), 150)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(30), 150)
    counters = world.scheduler.counters
    assert 0 < counters.draft_rows - counters.draft_accepted < 40
    assert counters.draft_accepted >= 45


SHAPES = {
    "segmented": segmented(64, 512),
    "free pool": free(64, 512),
    "one variant": fixed((8, 504)),
    "variants of one past": fixed((1, 496), (8, 496), (32, 496)),
    "variants of one context": fixed((1, 511), (32, 480)),
}


@pytest.mark.parametrize("target", SHAPES)
@pytest.mark.parametrize("own", SHAPES)
def test_any_layout_of_either(target: str, own: str) -> None:
    shapes = SHAPES[own]
    drafter = draft(shapes, SegmentedFake if shapes.segmented else FakeRuntime)
    world = world_with(drafter, SHAPES[target])
    for index in range(3):
        world.submit(f"r{index}", prompt(20 + index, index), 40)
    world.run()
    for index in range(3):
        assert world.outputs[f"r{index}"] == by_hand(prompt(20 + index, index), 40)
    counters = world.scheduler.counters
    assert counters.draft_accepted == counters.draft_rows
    assert counters.draft_rows > 0 or target == "variants of one context"  # where every step has one row


def test_a_sequence_with_an_id_that_the_draft_has_not_got_goes_on_without_it() -> None:
    class Narrow(SegmentedFake):
        def run(self, batch: PackedBatch) -> Logits:
            if batch.input_ids.max() >= VOCAB:
                raise StepFailed("an id is out of range")
            return super().run(batch)

    drafter, strange = draft(runtime=Narrow), (*prompt(20), VOCAB, *prompt(4))
    world = world_with(drafter)
    world.submit("strange", strange, 40)
    world.submit("plain", prompt(20, 1), 40)
    world.run()
    assert (world.outputs["strange"], world.outputs["plain"]) == (by_hand(strange, 40), by_hand(prompt(20, 1), 40))
    assert drafter.most and world.scheduler.counters.draft_accepted > 20


def test_no_cache_is_as_long_as_an_answer_might_become() -> None:
    drafter = draft(segmented(64, 65_536))
    world = world_with(drafter, segmented(64, 65_536))
    world.submit("a", prompt(30), 50_000)
    for _ in range(4):
        world.step()
    runtime = runtime_of(drafter)
    assert isinstance(runtime, SegmentedFake)
    assert [cache.columns for cache in owners(runtime.caches)] == [320]


def test_a_long_prompt_is_read_in_chunks_while_answers_go_on() -> None:
    drafter = draft(segmented(64, 1024), max_context=1000)
    world = world_with(drafter, segmented(64, 1024))
    world.submit("long", prompt(500), 60)
    world.run()
    assert world.outputs["long"] == by_hand(prompt(500), 60)
    assert max(batch.shape.rows for batch in runtime_of(drafter).steps) == 64
    assert world.scheduler.counters.draft_accepted > 20


def test_a_sequence_too_long_for_the_draft_goes_on_without_it() -> None:
    drafter = draft(max_context=64)
    world = world_with(drafter)
    world.submit("a", prompt(30), 120)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(30), 120)
    assert 0 < world.scheduler.counters.draft_accepted < 35


def test_prompts_that_wait_are_read_before_anything_is_guessed() -> None:
    drafter = draft()
    world = world_with(drafter, segmented(16, 512))
    world.submit("a", prompt(10), 60)
    world.step()
    world.submit("b", prompt(200, 1), 1)
    world.step()
    before = len(runtime_of(drafter).steps)
    while world.outputs["b"] == []:
        world.step()
        assert len(runtime_of(drafter).steps) == before
    world.run()
    assert len(runtime_of(drafter).steps) > before


def test_a_failure_of_the_draft_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    drafter = draft()
    runtime_of(drafter).fail_at = 3
    world = world_with(drafter)
    world.submit("a", prompt(30), 60)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(30), 60)
    assert drafter.most == 0
    assert "switched off" in caplog.text


def test_what_is_not_finite_never_stays_in_its_pool() -> None:
    drafter = draft()
    runtime_of(drafter).damage = frozenset(range(64))
    world = world_with(drafter)
    world.submit("a", prompt(30), 60)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(30), 60)
    assert drafter.most == 0


def test_forgotten_sequences_hold_no_block_of_the_draft() -> None:
    drafter = draft()
    world = world_with(drafter)
    world.submit("a", prompt(30), 60)
    world.submit("b", prompt(30, 1), 600)
    while "a" not in world.finishes:
        world.step()
    world.loop.abort("b")
    world.submit("c", prompt(3), 5)
    world.run()
    assert world.outputs["c"] == by_hand(prompt(3), 5)
    drafter.retain(())
    pool, runtime = drafter.steps.sequences.pool, runtime_of(drafter)
    assert pool.referenced == 0 and isinstance(runtime, SegmentedFake)
    in_memory = {block for cache in owners(runtime.caches) for block in cache.owned.values()}
    assert in_memory.isdisjoint(pool.snapshot().free)


def test_sampled_and_constrained_by_penalties_it_is_the_same_with_a_draft_and_without() -> None:
    def tokens(drafter: DraftModel | None) -> list[int]:
        world = simulate(segmented(64, 512), costs=TARGET_MS, drafter=drafter)
        world.submit("a", prompt(30), 80, temperature=1.5, top_p=0.9, frequency_penalty=0.7, logit_bias=((3, 4.0),))
        world.run()
        return world.outputs["a"]

    assert tokens(draft()) == tokens(None) == tokens(draft(runtime=SometimesWrong))


REQUEST = st.tuples(
    st.integers(0, 3),  # salt: equal salts share prefixes
    st.integers(1, 70),  # prompt length
    st.integers(1, 40),  # max tokens
    st.integers(0, 12),  # step of arrival
    st.one_of(st.none(), st.integers(0, 30)),  # step of cancel
    st.sampled_from([(), (3,), (0, 5, 7, 12, 20, 31, 44)]),  # stop tokens
)
WORLDS: dict[str, Callable[[], Simulation]] = {
    "right": lambda: world_with(draft(), segmented(24, 256)),
    "sometimes wrong": lambda: world_with(draft(runtime=SometimesWrong), segmented(24, 256)),
    "with a lookup": lambda: world_with(draft(runtime=SometimesWrong), segmented(24, 256), lookup_rows=3),
    "preempted": lambda: world_with(draft(), segmented(24, 256), columns=128),
    "little room for the draft": lambda: world_with(draft(segmented(64, 96)), segmented(24, 256)),
    "padding of a variant": lambda: world_with(draft(fixed((8, 248)), FakeRuntime), fixed((16, 112))),
}


@pytest.mark.parametrize("world_name", WORLDS)
@given(requests=st.lists(REQUEST, min_size=1, max_size=7))
@settings(max_examples=25, deadline=None)
def test_random_arrivals_cancels_and_preemptions(world_name: str, requests: list[tuple[Any, ...]]) -> None:
    world = WORLDS[world_name]()
    limit = world.scheduler.rules.capacity.tokens_per_sequence
    step = 0
    while step <= 31 or world.scheduler.has_work:
        for index, (salt, length, budget, arrival, cancel, stops) in enumerate(requests):
            if arrival == step:
                world.submit(f"r{index}", prompt(length, salt), budget, stop_token_ids=stops)
            if cancel == step:
                world.loop.abort(f"r{index}")
        world.step()
        step += 1
        assert step < 3000
    for index, (salt, length, budget, arrival, cancel, stops) in enumerate(requests):
        whole = by_hand(prompt(length, salt), budget, stops, limit)
        got = world.outputs[f"r{index}"]
        assert got == whole[: len(got)]
        if cancel is None or cancel < arrival:
            assert got == whole


def test_tokens_of_an_earlier_worker_are_read_by_the_draft_as_well() -> None:
    whole = by_hand(prompt(30), 60)
    world = world_with(draft())
    world.submit("a", prompt(30), 60, emitted=tuple(whole[:25]))
    world.run()
    assert world.outputs["a"] == whole
    assert world.tokens_per_step > 4


def test_a_prompt_of_embeddings_is_not_read_by_the_draft() -> None:
    drafter = draft()
    world = world_with(drafter)
    world.submit("a", prompt(30), 30)
    (sequence,) = world.scheduler.sequences()
    sequence.request = replace(sequence.request, prompt_embeds=b"rows")
    growth = world.scheduler._guesser.growth([sequence], Share(StepShape(1, 64), 1, 0))
    assert world.scheduler._guesser.requests([sequence], drafter, growth) == []
    sequence.request = replace(sequence.request, prompt_embeds=b"")
    assert world.scheduler._guesser.requests([sequence], drafter, growth) != []


def test_a_prompt_of_embeddings_has_nothing_to_read() -> None:
    drafter = draft()
    world = world_with(drafter)
    params = SamplingParams(20, temperature=0.0)
    world.loop.add(Request("embedded", (0,) * 20, params, prompt_embeds=bytes(20 * 4)), (), 1, 0.0)
    while world.scheduler.has_work:
        world.loop.step()
    assert world.loop.stats().draft_rows == 0
    assert runtime_of(drafter).steps == []


def wished(rights: Sequence[int], pauses: int = 0) -> int:
    """Tokens asked of a draft after steps with so many right guesses each, and steps that took none."""
    drafter = draft(most=8)
    world = simulate(CACHES, costs=TARGET_MS, max_gap_ms=1e6)
    world.submit("a", prompt(3), 200)
    world.step()
    (sequence,) = world.scheduler.sequences()
    sequence.guesses.taken = GuessKind.DRAFT
    guesser = world.scheduler._guesser
    for right in rights:
        guesser.judge(sequence, 8, right, right)
    for _ in range(pauses):
        sequence.guesses.kinds[GuessKind.DRAFT].retries.step_over()
    requests = guesser.requests([sequence], drafter, guesser.growth([sequence], Share(StepShape(1, 64), 1, 0)))
    return requests[0].count if requests else 0


def test_as_much_is_asked_of_the_draft_as_its_guesses_were_worth_lately() -> None:
    assert wished((8,) * 8) > wished((1,) * 12) > 0
    assert wished((1,) * 12) <= 3  # a right one among wrong ones makes no trial of every step
    assert wished((0,) * 12) == 0
    assert wished((0,) * 12, pauses=200) == TRIAL_GUESSES
