"""Confidence intervals of figures of tokens. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_TOKENS = 32  # drawn together by the bootstrap, for neighbours in a text are alike
RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and where it lies with a probability of `LEVEL`."""

    value: float
    low: float
    high: float


def draw(lengths: Sequence[int], seed: int) -> list[NDArray[np.int64]]:
    """Bootstrap samples as places of tokens: blocks of neighbours drawn with replacement, none across two windows."""
    starts = np.cumsum([0, *lengths])
    blocks = [
        np.arange(start + first, start + last)
        for start, length in zip(starts, lengths, strict=False)
        for first, last in slabs(length, BLOCK_TOKENS)
    ]
    source = np.random.default_rng(seed)
    return [
        np.concatenate([blocks[block] for block in source.integers(0, len(blocks), len(blocks))])
        for _ in range(RESAMPLES)
    ]


def interval(figure: Callable[[NDArray[np.int64]], float], count: int, draws: Sequence[NDArray[np.int64]]) -> Interval:
    """A figure of `count` tokens, and the percentiles of it over the draws."""
    found = [figure(places) for places in draws]
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(figure(np.arange(count)), float(low), float(high))


def slabs(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of runs of `size`, the last one perhaps shorter."""
    for start in range(0, count, size):
        yield start, min(start + size, count)
