"""How far apart two predictions of the same tokens are, and how sure a figure of tokens is. Logits [T, vocab]. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def log_softmax(logits: Float32) -> Float64:
    """Log-probabilities [T, vocab]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def divergences(expected: Float64, found: Float64) -> Float64:
    """KL(expected || found) [T] of log-probabilities."""
    result: Float64 = np.sum(np.exp(expected) * (expected - found), axis=1)
    return result


SLAB_ROWS = 64  # compared in float64 at a time: all rows would take several times their logits


def all_divergences(reference: Float32, measured: Float32) -> Float64:
    """KL(reference || measured) [T] in nats, of logits [T, vocab]."""
    runs = [slice(*bounds) for bounds in slabs(len(reference), SLAB_ROWS)]
    found = [divergences(log_softmax(reference[run]), log_softmax(measured[run])) for run in runs]
    # Rounding may take the divergence of two equal predictions below nothing.
    return np.maximum(np.concatenate(found), 0.0)


def mean_divergence(reference: Float32, measured: Float32) -> float:
    """The mean of the same."""
    return float(all_divergences(reference, measured).mean())


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
