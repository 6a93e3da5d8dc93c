"""Codes and scales as numbers that gradients move, the steps, and the choice of the best state on the way.

A weight is (code - zero) * scale. Its code is the rounding of a place, a number that is learned: the gradient passes
the rounding as if it were not there (the straight-through estimator, Bengio et al. 2013), and a place starts where the
float weight lies, as far as the given code allows. That is SignRound's offset (AutoRound, Cheng et al. 2023) counted
from the given codes. Scales are multiplied by a power of e, so that none changes its sign.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from engine.compile.quantisation.learn.learning_plan import HELD_BACK, JUDGEMENTS, WARM_UP, LearningRates
from engine.compile.quantisation.methods.blocks import INT4_MIDDLE, Float32
from engine.compile.quantisation.rounding.codes import HIGHEST, BlockCodes, BlockScales, in_blocks
from engine.errors import CompileError

# Nearer to the border of two codes than this no place starts: a first small step turns no code.
BORDER = 0.05


class LearnedBlocks:
    """A matrix given as codes. weight [outputs, inputs]: the floats, to learn codes too; None = codes stay.

    one_gain: all scales of an output share a factor, so that they stay multiples of one unit (LPBQ). gains [outputs,
    blocks], or [outputs, 1]: the factors' logarithms. places [outputs, blocks, block]: what rounds to the codes.
    """

    def __init__(self, given: BlockCodes, weight: Float32 | None = None, one_gain: bool = False) -> None:
        self._given = given
        outputs, blocks = given.grid.scales.shape
        self._codes = torch.from_numpy(given.codes)
        self._scales = torch.from_numpy(given.grid.scales)
        zeros = given.grid.zeros
        self._zeros = torch.tensor(float(INT4_MIDDLE)) if zeros is None else torch.from_numpy(zeros)[:, :, None].float()
        self.gains = torch.zeros(outputs, 1 if one_gain else blocks, requires_grad=True)
        self.places = None if weight is None else self._places(weight).requires_grad_()

    def floats(self) -> Tensor:
        """The weights [outputs, inputs] that codes and scales stand for, with gradients."""
        scales = self._scales * torch.exp(self.gains)
        values = (self._rounded() - self._zeros) * scales[:, :, None]
        return values.reshape(len(values), -1)[:, : self._given.inputs]

    def learned(self) -> BlockCodes:
        """As they are now, in the layout they were given in."""
        with torch.no_grad():
            scales = (self._scales * torch.exp(self.gains)).numpy()
            codes = self._given.codes if self.places is None else self._rounded().numpy().astype(np.uint8)
        return BlockCodes(
            codes, BlockScales(scales, self._given.grid.zeros, self._given.grid.block), self._given.inputs
        )

    def parameters(self) -> Iterator[Tensor]:
        """What is learned."""
        yield self.gains
        if self.places is not None:
            yield self.places

    def _places(self, weight: Float32) -> Tensor:
        """Where the weights lie among the codes, but nowhere that another code would come of it."""
        codes = self._codes.float()
        wanted = torch.from_numpy(in_blocks(weight, self._given.grid.block)) / self._scales[:, :, None] + self._zeros
        return torch.clamp(wanted, codes - (0.5 - BORDER), codes + (0.5 - BORDER)).clamp(0, HIGHEST)

    def _rounded(self) -> Tensor:
        if self.places is None:
            return self._codes.float()
        return self.places + (self.places.round().clamp(0, HIGHEST) - self.places).detach()


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


@dataclass(frozen=True, slots=True)
class TextBatch:
    """indices [B]: which texts. real [B, T]: which places hold a token; the others are padding behind a text's end."""

    indices: tuple[int, ...]
    real: Tensor

    @property
    def tokens(self) -> int:
        """How many are no padding."""
        return int(self.real.sum())

    def of(self, texts: Sequence[Tensor]) -> Tensor:
        """The texts [T, ...] of this batch as one tensor [B, T, ...], padded with zeros."""
        return torch.nn.utils.rnn.pad_sequence([texts[index] for index in self.indices], batch_first=True)


def parted(count: int) -> tuple[list[int], list[int]]:
    """Indices of the texts that are learned from and of those held back; CompileError when there is one text only."""
    if count < 2:
        raise CompileError("--quality best learns from some texts and is judged by others; give longer --calibration")
    held = range(1, count, HELD_BACK)
    return [index for index in range(count) if index not in held], list(held)


def batches(lengths: Sequence[int], indices: Sequence[int], tokens: int) -> list[TextBatch]:
    """Texts of like length together, at most `tokens` places in a batch unless one text alone has more."""
    found: list[list[int]] = []
    for index in sorted(indices, key=lambda index: lengths[index]):
        # The newest is the longest: it says how wide the batch would be.
        if not found or (len(found[-1]) + 1) * lengths[index] > tokens:
            found.append([])
        found[-1].append(index)
    return [_batch(tuple(group), lengths) for group in found]


def _batch(indices: tuple[int, ...], lengths: Sequence[int]) -> TextBatch:
    widths = torch.tensor([lengths[index] for index in indices])
    return TextBatch(indices, torch.arange(int(widths.max())) < widths[:, None])


def endless(given: Sequence[TextBatch], seed: int) -> Iterator[TextBatch]:
    """The batches again and again, each round in an order of its own."""
    rng = Random(seed)
    while True:
        yield from rng.sample(given, len(given))
