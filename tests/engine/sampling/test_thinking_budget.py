"""A bound on thinking holds for every way a sequence can run, and touches nobody else."""

import numpy as np
import pytest

from engine.core.speculation import PromptLookup
from engine.request import SamplingParams, ThinkingBudget
from engine.runtime.interface import Logits
from engine.sampling.sampler import RowContext, SampledToken, forced_token, sample
from tests.engine.worker.simulation import by_hand, fixed, simulate

OPEN, CLOSE = (90,), (91, 92)


@pytest.mark.parametrize(
    ("opening", "completion", "forced"),
    [
        ((), [], None),
        ((), [1, 2], None),
        ((), [1, 2, 3], 91),
        ((), [1, 2, 3, 91], 92),
        ((), [1, 2, 3, 91, 92], None),
        ((), [1, 2, 3, 91, 92, 5, 6, 7, 8], None),
        ((), [1, 91, 92, 4, 5, 6, 7], None),  # closed in time
        ((), [1, 2, 91], 92),  # it had just begun to close
        (OPEN, [1, 2, 3, 4, 5, 6, 7, 8], None),  # never opened
        (OPEN, [90, 1, 2], None),
        (OPEN, [90, 1, 2, 3], 91),
        (OPEN, [7, 90, 1, 2, 3, 91], 92),
        (OPEN, [1, 2, 3, 4, 5, 90, 1, 2, 3], None),  # not at the beginning: text
    ],
)
def test_what_is_forced(opening: tuple[int, ...], completion: list[int], forced: int | None) -> None:
    assert forced_token(ThinkingBudget(3, opening, CLOSE), completion) == forced


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_spent_budget_closes_and_neighbours_go_on(budget: int) -> None:
    world = simulate(fixed((4, 60), (8, 64)), lookup=PromptLookup(), lookup_rows=2, columns=48)
    closing = (41, 42)
    for name, limits in (("thinks", ThinkingBudget(budget, (), closing)), ("free", None), ("late", None)):
        world.submit(name, (1, 2, 3), 25, thinking_budget=limits)
    world.run()
    free = by_hand((1, 2, 3), 25)
    assert world.outputs["free"] == world.outputs["late"] == free
    thoughts = free[:budget]
    prefix = (1, 2, 3, *thoughts, *closing)
    assert world.outputs["thinks"] == [*thoughts, *closing, *by_hand(prefix, 25 - budget - 2)]
    assert world.loop.stats().preemptions > 0


def test_forced_tokens_are_drawn_at_any_temperature() -> None:
    logits = np.random.default_rng(1).normal(size=(1, 100)).astype(np.float32)
    for extra in ({}, {"top_k": 5}, {"top_p": 0.3}, {"min_p": 0.2}, {"repetition_penalty": 1.5}):
        params = SamplingParams(9, temperature=2.0, thinking_budget=ThinkingBudget(1, (), CLOSE), logprobs=0, **extra)
        pick = sample(Logits.of(logits), [RowContext(params, 3, (1,), (5,))])[0]
        assert isinstance(pick, SampledToken) and pick.token_id == 91
        assert pick.logprob is not None and -50 < pick.logprob.logprob < 0  # what the model thought of it


@pytest.mark.parametrize("begun", [0, 1, 2, 3])
def test_a_long_closing_goes_on_from_wherever_it_is(begun: int) -> None:
    closing = (91, 92, 93, 94)
    forced = forced_token(ThinkingBudget(4, (), closing), [1, 2, 3, 4, 5, *closing[:begun]])
    assert forced == closing[begun]
