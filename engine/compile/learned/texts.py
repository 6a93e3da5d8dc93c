"""Texts of different lengths side by side, and which of them are held back to judge what the others taught."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from engine.compile.learned.rates import HELD_BACK
from engine.errors import CompileError


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
