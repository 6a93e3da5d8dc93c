"""Gradient steps on codes and scales, and the choice of the best state that was seen on the way."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Adam

from engine.compile.learned.blocks import LearnedBlocks
from engine.compile.rounding.codes import BlockCodes

WARM_UP = 10  # steps
JUDGEMENTS = 4  # how often a state is judged


@dataclass(frozen=True, slots=True)
class Rates:
    """steps of Adam; scales: its rate for logarithms of scales; places: for numbers that round to codes, 0 = fixed."""

    steps: int
    scales: float
    places: float


@dataclass(frozen=True, slots=True)
class Learned:
    """codes: the best state by tensor name. before, after: error on the texts held back, as given and of that state."""

    codes: dict[str, BlockCodes]
    before: float
    after: float


def descend(
    blocks: Mapping[str, LearnedBlocks],
    rates: Rates,
    loss: Callable[[], Tensor],
    judge: Callable[[], float],
    advance: Callable[[int], None],
) -> Learned:
    """Learn, and return the state for which `judge` was least: the given one unless another is better.

    loss: of one batch, another one at each call. judge: the error on texts that no loss is computed of. advance: is
    told of every step.
    """
    optimizer = Adam(_groups(blocks, rates), betas=(0.9, 0.99))
    starts = [group["lr"] for group in optimizer.param_groups]
    with torch.no_grad():
        before = judge()
    best = Learned({name: each.learned() for name, each in blocks.items()}, before, before)
    for step in range(1, rates.steps + 1):
        for group, start in zip(optimizer.param_groups, starts, strict=True):
            group["lr"] = start * _factor(step, rates.steps)
        optimizer.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        advance(1)
        if step * JUDGEMENTS % rates.steps < JUDGEMENTS:
            best = _better(best, blocks, judge)
    return best


def _better(best: Learned, blocks: Mapping[str, LearnedBlocks], judge: Callable[[], float]) -> Learned:
    with torch.no_grad():
        error = judge()
    # A state that is not finite is never smaller.
    if not error < best.after:
        return best
    return Learned({name: each.learned() for name, each in blocks.items()}, best.before, error)


def _groups(blocks: Mapping[str, LearnedBlocks], rates: Rates) -> list[dict[str, object]]:
    groups: list[dict[str, object]] = [{"params": [each.gains for each in blocks.values()], "lr": rates.scales}]
    places = [each.places for each in blocks.values() if each.places is not None]
    return [*groups, {"params": places, "lr": rates.places}] if places else groups


def _factor(step: int, steps: int) -> float:
    """Of the rates: up in the first steps, then down along half a cosine wave."""
    return min(1.0, step / WARM_UP) * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
