"""Fused graphs of D slots on the simulated clock, against arithmetic by hand."""

import pytest

from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from tests.tools.simulate.playing import everyone, play, prices
from tools.simulate.baselines import Fusion
from tools.simulate.clock import Run
from tools.simulate.slots import slot_policy, slot_prices

MLLM = prices({1: 38.7, 32: 42.2}, slot_ms=2.1)


def worst_gap(run: Run) -> int:
    return max(gap for answer in run.answers.values() for gap in answer.gaps_in_steps)


def test_the_graphs_and_what_each_costs() -> None:
    """Between one row and 32 linear; a graph pays for every cache it reads, used or not."""
    made = slot_prices(MLLM, 8)
    assert made.shapes.slots == 8
    eight = 38.7 + 7 * (42.2 - 38.7) / 31
    assert made.milliseconds == {
        StepShape(1, 896): 38.7,
        StepShape(8, 896): pytest.approx(eight + 7 * 2.1),
        StepShape(32, 896): pytest.approx(42.2 + 8 * 2.1),
    }
    with pytest.raises(ValueError, match="--slots 32 leave no rows for a prompt: the widest variant has 32"):
        slot_prices(MLLM, 32)


def test_one_slot_takes_the_steps_of_mllm_and_starves_nobody() -> None:
    """The same work in as many steps, but streams take turns: eight of them wait for eight steps, not for the end."""
    load = everyone(8, 256, 128)
    fixed, turns = play(Fusion(MLLM), load), play(slot_policy(MLLM, 1, EngineConfig("")), load)
    assert turns.steps == fixed.steps == 9 + 8 * 127
    assert (worst_gap(fixed), worst_gap(turns)) == (827, 8)


@pytest.mark.parametrize(("slots", "steps", "gap"), [(4, 291, 2), (8, 215, 1)])
def test_steps_and_worst_gap_of_eight_clients(slots: int, steps: int, gap: int) -> None:
    run = play(slot_policy(MLLM, slots, EngineConfig("")), everyone(8, 256, 128))
    assert (run.steps, worst_gap(run)) == (steps, gap)
    assert run.rows_used == 8 * (256 + 127)
    assert [answer.tokens for answer in run.answers.values()] == [list(range(128))] * 8
