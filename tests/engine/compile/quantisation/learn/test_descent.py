"""Which state is chosen: never one that is worse than the given one on what is held back."""

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.compile.quantisation.learn.descent import Blocks, LearnedBlocks, descend
from engine.compile.quantisation.learn.learning_plan import JUDGEMENTS, LearningRates
from engine.compile.quantisation.rounding.codes import Coding, extreme_scales, rounded

WEIGHT = np.random.default_rng(6).standard_normal((8, 32)).astype(np.float32)
GIVEN = rounded(WEIGHT, extreme_scales(WEIGHT, 32, Coding.SYMMETRIC))
STEPS = 40


def loss(blocks: Blocks) -> Tensor:
    return (blocks["w"].floats() - torch.from_numpy(WEIGHT)).square().mean()


def judged(blocks: Blocks) -> float:
    return float(loss(blocks))


@pytest.mark.parametrize("places", [0.0, 5e-3])
def test_the_error_falls_and_is_that_of_the_codes_returned(places: float) -> None:
    blocks = {"w": LearnedBlocks(GIVEN, WEIGHT if places else None)}
    steps: list[int] = []
    learned = descend(blocks, LearningRates(STEPS, 5e-3, places), loss, judged, steps.append)
    assert learned.before == pytest.approx(np.square(GIVEN.floats() - WEIGHT).mean(), rel=1e-5)
    assert learned.after < learned.before
    assert learned.after == pytest.approx(np.square(learned.codes["w"].floats() - WEIGHT).mean(), rel=1e-5)
    assert sum(steps) == STEPS


@pytest.mark.parametrize("error", [2.0, float("nan")])
def test_what_is_no_better_on_texts_held_back_is_not_taken(error: float) -> None:
    blocks = {"w": LearnedBlocks(GIVEN)}
    errors = iter([1.0] + [error] * JUDGEMENTS)
    learned = descend(blocks, LearningRates(STEPS, 5e-3, 0.0), loss, lambda _: next(errors), lambda _: None)
    assert next(errors, None) is None
    assert (learned.before, learned.after) == (1.0, 1.0)
    assert np.array_equal(learned.codes["w"].grid.scales, GIVEN.grid.scales)


def test_the_best_state_on_the_way_is_taken() -> None:
    blocks = {"w": LearnedBlocks(GIVEN)}
    errors, seen = iter([3.0, 2.0, 1.0, 1.5, 2.0]), list[np.ndarray]()

    def judge(_: Blocks) -> float:
        seen.append(blocks["w"].learned().grid.scales)
        return next(errors)

    learned = descend(blocks, LearningRates(STEPS, 5e-3, 0.0), loss, judge, lambda _: None)
    assert learned.after == 1.0
    assert np.array_equal(learned.codes["w"].grid.scales, seen[2])


def test_few_steps_are_judged_as_well() -> None:
    blocks = {"w": LearnedBlocks(GIVEN)}
    assert descend(blocks, LearningRates(2, 5e-3, 0.0), loss, judged, lambda _: None).after < float("inf")
