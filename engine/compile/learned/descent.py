"""Gradient steps on codes and scales, and the choice of the best state that was seen on the way."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Adam

from engine.compile.checkpoint import Float32
from engine.compile.learned.blocks import LearnedBlocks
from engine.compile.learned.rates import JUDGEMENTS, WARM_UP, LearningRates
from engine.compile.rounding.codes import BlockCodes

Blocks = Mapping[str, LearnedBlocks]


@dataclass(frozen=True, slots=True)
class Learned:
    """codes: the best state by tensor name. before, after: error on the texts held back, as given and of that state."""

    codes: dict[str, BlockCodes]
    before: float
    after: float


def learn(
    codes: Mapping[str, BlockCodes],
    floats: Callable[[str], Float32],
    with_units: Collection[str],
    rounds: Sequence[LearningRates],
    loss: Callable[[Blocks], Tensor],
    judge: Callable[[Blocks], float],
    advance: Callable[[int], None],
) -> Learned:
    """Round after round, each from where the one before it ended. floats: the matrix of a name, [outputs, inputs]."""
    ends: list[Learned] = []
    for rates in rounds:
        given = ends[-1].codes if ends else codes
        blocks = {
            name: LearnedBlocks(given[name], floats(name) if rates.places else None, name in with_units)
            for name in codes
        }
        ends.append(descend(blocks, rates, loss, judge, advance))
    return Learned(ends[-1].codes, ends[0].before, ends[-1].after)


def descend(
    blocks: Blocks,
    rates: LearningRates,
    loss: Callable[[Blocks], Tensor],
    judge: Callable[[Blocks], float],
    advance: Callable[[int], None],
) -> Learned:
    """Learn, and return the state for which `judge` was least: the given one unless another is better.

    loss: of one batch, another one at each call. judge: the error on texts that no loss is computed of. advance: is
    told of every step.
    """
    optimizer = Adam(_groups(blocks, rates), betas=(0.9, 0.99))
    starts = [group["lr"] for group in optimizer.param_groups]
    with torch.no_grad():
        before = judge(blocks)
    best = Learned({name: each.learned() for name, each in blocks.items()}, before, before)
    for step in range(1, rates.steps + 1):
        for group, start in zip(optimizer.param_groups, starts, strict=True):
            group["lr"] = start * _factor(step, rates.steps)
        optimizer.zero_grad()
        loss(blocks).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        advance(1)
        if step * JUDGEMENTS % rates.steps < JUDGEMENTS:
            best = _better(best, blocks, judge)
    return best


def _better(best: Learned, blocks: Blocks, judge: Callable[[Blocks], float]) -> Learned:
    with torch.no_grad():
        error = judge(blocks)
    # A state that is not finite is never smaller.
    if not error < best.after:
        return best
    return Learned({name: each.learned() for name, each in blocks.items()}, best.before, error)


def _groups(blocks: Blocks, rates: LearningRates) -> list[dict[str, object]]:
    groups: list[dict[str, object]] = [{"params": [each.gains for each in blocks.values()], "lr": rates.scales}]
    places = [each.places for each in blocks.values() if each.places is not None]
    return [*groups, {"params": places, "lr": rates.places}] if places else groups


def _factor(step: int, steps: int) -> float:
    """Of the rates: up in the first steps, then down along half a cosine wave."""
    return min(1.0, step / WARM_UP) * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
