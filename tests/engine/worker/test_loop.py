"""One step as a transaction: events, timings, counters, failures."""

import inspect
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.bundle.variant import StepShape
from engine.core.policy import CostTable
from engine.core.sequence import MOVES, Sequence, SequenceStatus
from engine.core.speculation import PromptLookup
from engine.grammar.masks import GrammarMasks
from engine.messages import Counters
from engine.request import FinishReason, Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch
from engine.worker.step import EngineLoop
from tests.engine.grammar.small_tokens import inline_masks
from tests.engine.worker.simulation import RightGuesses, by_hand, fixed, free, simulate


def test_counters_and_the_line_of_timings() -> None:
    world = simulate(fixed((8, 120)))
    world.submit("a", tuple(range(20)), 5)
    timings = None
    while world.scheduler.has_work:
        for event in world.loop.step().events:
            timings = event.timings or timings
    assert timings is not None
    assert (timings.prompt_tokens, timings.generated_tokens, timings.cached_tokens) == (20, 5, 0)
    assert timings.prompt_ms > 0 and timings.generate_ms > 0
    assert timings.line().startswith("prompt:") and "tps:prompt=" in timings.line() and "generate=" in timings.line()


def test_counters_tell_useful_rows_from_padding() -> None:
    world = simulate(fixed((8, 120)))
    for index in range(4):
        world.submit(f"s{index}", (index + 1,), 6)
    world.run()
    stats = world.loop.stats()
    assert (stats.steps, stats.rows_used, stats.rows_run) == (6, 24, 48)
    assert (stats.decode_rows, stats.prefill_rows) == (24, 0)
    assert (stats.finished, stats.generated_tokens, stats.prompt_tokens) == (4, 24, 4)
    assert (stats.running, stats.waiting, stats.kv_slots_used) == (0, 0, 0)


def test_rows_with_guesses_are_logged_as_a_decode(caplog: pytest.LogCaptureFixture) -> None:
    world = simulate(fixed((8, 120)), lookup=RightGuesses(), lookup_rows=3)
    world.submit("a", tuple(range(4)), 9)
    with caplog.at_level(logging.DEBUG, "hexserve.worker"):
        world.run()
    kinds = [record.message.split(" at ")[0] for record in caplog.records if record.message.split()[1] == "a:"]
    assert kinds[:-1] == ["prefill a: rows 4", "decode a: rows 4", "decode a: rows 4"]
    assert kinds[-1].startswith("end a: length")


def test_every_stage_of_a_step_is_timed() -> None:
    world = simulate(fixed((8, 120)))
    world.submit("a", (1, 2), 3)
    world.run()
    stages = world.loop.stats().stages
    assert set(stages) == {"plan", "pack", "blocks", "graph", "sample", "commit", "keep", "events"}
    assert all(seconds > 0 for seconds in stages.values())


def test_a_row_of_nan_fails_its_request_and_no_other() -> None:
    world = simulate(fixed((8, 120)))
    world.submit("good", (1, 2, 3), 6)
    world.submit("bad", (4, 5), 6)
    run = world.runtime.run

    def poisoned(batch: PackedBatch) -> Logits:
        logits = run(batch)
        if len(world.runtime.steps) == 3:
            logits.decoded()[1] = np.nan
        return logits

    world.runtime.run = poisoned  # type: ignore[method-assign]
    world.run()
    assert list(world.failures) == ["bad"]
    assert world.outputs["good"] == by_hand((1, 2, 3), 6)


def test_an_illegal_move_is_caught() -> None:
    sequence = Sequence(Request("a", (1,), SamplingParams(1)), 0, 0, [1])
    sequence.move(SequenceStatus.PREFILL)
    sequence.move(SequenceStatus.FINISHED)
    with pytest.raises(AssertionError, match="finished -> prefill"):
        sequence.move(SequenceStatus.PREFILL)
    assert set(MOVES) == set(SequenceStatus)


def test_nothing_is_generated_after_the_end() -> None:
    world = simulate(fixed((8, 120)))
    world.submit("a", (1, 2), 3)
    world.run()
    assert world.finishes == {"a": FinishReason.LENGTH}
    for _ in range(5):
        assert world.loop.step().events == ()
    assert len(world.outputs["a"]) == 3


def test_keys_that_are_not_finite_end_their_request_and_reach_no_pool() -> None:
    world = simulate(fixed((8, 120)))
    world.submit("bad", (4, 5, 6, 7), 6)
    world.submit("good", (1, 2, 3), 6)
    world.runtime.damage = frozenset({1})  # rows 1 to 4 are "bad"'s
    world.run()
    assert list(world.failures) == ["bad"]
    assert world.outputs["good"] == by_hand((1, 2, 3), 6)
    assert not world.outputs["bad"]


def test_the_time_inside_the_graphs_is_neither_copies_nor_re_laying_nor_masks() -> None:
    masks = inline_masks()
    world = simulate(free(64, 2048), lookup=PromptLookup(), lookup_rows=4, offload_blocks=100, masks=masks)
    now, observed = [0.0], list[float]()

    def lasting(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any) -> Any:
            now[0] += seconds
            return call(*arguments)

        return slow

    world.loop._clock = lambda: now[0]
    for name, seconds in (("run", 1.0), ("lay_out", 10.0), ("offload", 100.0), ("load", 1000.0), ("keep", 1e4)):
        setattr(world.runtime, name, lasting(seconds, getattr(world.runtime, name)))
    masks.late = lasting(1e5, masks.late)  # type: ignore[method-assign]
    world.scheduler.costs.observe = lambda _, milliseconds: observed.append(milliseconds)  # type: ignore[method-assign]
    for name, length in (("long", 600), ("short", 10), ("again", 600)):
        world.submit(name, tuple(range(length)), 4)
        world.run()
    stats = world.loop.stats()
    assert world.scheduler.counters.prefix_hits == 592
    assert stats.run_s == stats.steps and observed == [1000.0] * stats.steps
    assert stats.relayout_s == 10.0 * stats.steps
    assert stats.copy_s == 34 * 1100.0  # of the 37 blocks all but three went to the host cache and came back
    assert stats.step_s == stats.run_s + stats.relayout_s + stats.copy_s + 1.1e5 * stats.steps


def test_every_counter_has_one_owner() -> None:
    """What the loop, the scheduler and the runtime count is added up: two owners would count twice."""
    world = simulate(fixed((4, 92), (16, 96)), lookup=PromptLookup(), lookup_rows=3)
    for index in range(6):
        world.submit(f"s{index}", (1, 2, 3) * 7 + (index,), 18)
    world.run()
    parts = (world.loop._book.counters, world.scheduler.counters)
    counted = [{name for name in Counters.__struct_fields__ if getattr(part, name)} for part in parts]
    assert all(counted) and not counted[0] & counted[1]
    stats = world.loop.stats()
    assert all(getattr(stats, name) == sum(getattr(part, name) for part in parts) for name in set.union(*counted))


def test_a_step_is_announced_with_the_time_it_should_take() -> None:
    world = simulate(fixed((8, 120)))
    told: list[float] = []
    world.submit("a", (1, 2, 3), 3)
    while world.scheduler.has_work:
        world.loop.step(told.append)
    assert len(told) == 3
    assert told[0] == 0.0  # nobody knows; then the longest so far
    assert told[1] > 0 and told[2] >= told[1]
    world.scheduler.costs = CostTable({StepShape(8, 120): 40.0})
    world.submit("b", (1, 2, 3), 1)
    world.loop.step(told.append)
    assert told[3] == 40.0


def test_waiting_for_masks_is_no_step() -> None:
    masks = inline_masks()
    world = simulate(fixed((8, 120)), masks=masks)
    masks.late = lambda: frozenset({"a"})  # type: ignore[method-assign]
    world.submit("a", (1, 2, 3), 4)
    told: list[float] = []
    for _ in range(5):
        world.loop.step(told.append)
    assert told == [0.0, 0.0]  # a step for the prompt, then the wait


def test_no_step_looks_a_sequence_up() -> None:
    """A plan's segments carry their sequences; `find` is for requests that come from outside."""
    masks = inline_masks()
    world = simulate(fixed((8, 120)), lookup=PromptLookup(), lookup_rows=3, offload_blocks=4, masks=masks)
    world.submit("a", (1, 2, 3) * 4, 9)
    world.submit("b", (1, 2, 3, 4), 3, prompt_logprobs=1)
    looked_up: list[str] = []
    world.scheduler.find = looked_up.append  # type: ignore[method-assign, assignment]
    world.run()
    assert looked_up == [] and set(world.finishes) == {"a", "b"}


def test_a_loop_always_has_masks() -> None:
    """Without grammars they are empty, so that no part asks whether there are any."""
    parameter = inspect.signature(EngineLoop).parameters["masks"]
    assert parameter.default is inspect.Parameter.empty and parameter.annotation is GrammarMasks
    masks = inline_masks()
    assert "a" not in masks and masks.late() == frozenset()
    masks.forget("a")


def test_timings_are_the_clocks() -> None:
    world = simulate(fixed((8, 120)))
    now = [10.0]
    world.loop._clock = lambda: now[0]
    world.submit("a", (1, 2, 3), 3)  # arrived at 0
    run = world.runtime.run

    def lasting(batch: PackedBatch) -> Logits:
        now[0] += 2.0
        return run(batch)

    world.runtime.run = lasting  # type: ignore[method-assign]
    events = [event for _ in range(3) for event in world.loop.step().events]
    assert [event.timings is not None for event in events] == [False, False, True]
    timings = events[-1].timings
    assert timings is not None
    assert (timings.queue_ms, timings.prompt_ms, timings.generate_ms) == (10_000.0, 2_000.0, 4_000.0)
    assert (timings.steps, timings.step_rows) == (3, 5)


def test_a_switch_is_a_step_of_another_shape_than_the_last() -> None:
    world = simulate(fixed((1, 127), (8, 120)), costs={StepShape(1, 127): 1.0, StepShape(8, 120): 2.0})
    world.submit("a", tuple(range(8)), 5)
    world.run()
    assert [batch.shape.rows for batch in world.runtime.steps] == [8, 1, 1, 1, 1]
    assert world.loop.stats().variant_switches == 1


def test_a_prompt_that_an_earlier_worker_has_counted_is_not_counted_again() -> None:
    world = simulate(fixed((8, 120)))
    world.submit("new", (1, 2, 3), 3)
    world.submit("resumed", (4, 5, 6, 7), 5, emitted=tuple(by_hand((4, 5, 6, 7), 2)))
    world.run()
    stats = world.loop.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.finished) == (3, 3 + 3, 2)


def test_no_logprob_outlives_the_stop_that_cuts_an_accepted_guess() -> None:
    whole = by_hand((1, 2, 3), 40)
    cuts = 0
    for stop in sorted(set(whole)):
        world = simulate(fixed((8, 256)), lookup=RightGuesses(), lookup_rows=4)
        world.submit("a", (1, 2, 3), 40, stop_token_ids=(stop,), logprobs=0)
        while world.scheduler.has_work:
            for event in world.loop.step().events:
                assert [entry.token_id for entry in event.logprobs] == list(event.token_ids)
                cuts += event.finish is FinishReason.STOP and 1 < len(event.token_ids) < 5
    assert cuts > 3
