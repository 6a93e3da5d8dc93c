"""Perplexity, divergence, agreement and their intervals, against their definitions written down plainly."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine.compile.check.parity import BLOCK_TOKENS, SLAB_ROWS, draw, interval
from engine.evaluation.evaluate import TokenScores, joined, quality, score

ROWS, IDS = 16 * SLAB_ROWS + 3, 11


def logits(seed: int, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, IDS)).astype(np.float32)


def targets(rows: int = ROWS) -> list[int]:
    return [int(each) for each in np.random.default_rng(9).integers(0, IDS, rows)]


def probabilities(row: np.ndarray) -> list[float]:
    powers = [math.exp(float(each)) for each in row]
    return [each / sum(powers) for each in powers]


def test_losses_are_cross_entropy() -> None:
    found = score(logits(1), targets()).losses
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits(1), dtype=torch.float64), torch.tensor(targets()), reduction="none"
    )
    assert np.allclose(found, expected.numpy(), rtol=1e-12)


def test_divergence_and_agreement_are_their_definitions() -> None:
    found = score(logits(1), targets(), logits(2))
    assert found.divergences is not None
    assert found.agreements is not None
    assert found.reference_losses is not None
    for row, (measured, reference) in enumerate(zip(logits(1), logits(2), strict=True)):
        q, p = probabilities(measured), probabilities(reference)
        divergence = sum(each * math.log(each / other) for each, other in zip(p, q, strict=True))
        assert found.divergences[row] == pytest.approx(divergence, rel=1e-9)
        assert found.agreements[row] == (p.index(max(p)) == q.index(max(q)))
        assert found.reference_losses[row] == pytest.approx(-math.log(p[targets()[row]]), rel=1e-9)
    assert 0 < found.agreements.sum() < ROWS


def test_large_logits_overflow_nowhere() -> None:
    found = score(np.array([[3e4, -3e4]], np.float32), [1], np.array([[-3e4, 3e4]], np.float32))
    assert found.losses.tolist() == [6e4]
    assert found.divergences is not None
    assert found.divergences.tolist() == [6e4]


def test_figures_of_several_windows() -> None:
    sizes = (70, 50, 14)
    starts = np.cumsum([0, *sizes])
    windows = [score(logits(1, 134)[a:b], targets(134)[a:b], logits(2, 134)[a:b]) for a, b in pairwise(starts)]
    whole = joined(windows)
    assert whole.divergences is not None
    assert whole.agreements is not None
    assert whole.reference_losses is not None
    found = quality(windows, 0)
    assert found.tokens == 134
    assert found.perplexity.value == pytest.approx(math.exp(sum(whole.losses) / 134))
    assert found.perplexity_loss is not None
    assert found.top1 is not None
    assert found.kl is not None
    assert found.kl_p99 is not None
    of_reference = math.exp(sum(whole.reference_losses) / 134)
    assert found.perplexity_loss.value == pytest.approx(found.perplexity.value / of_reference - 1)
    assert found.top1.value == sum(whole.agreements) / 134
    assert found.kl.value == pytest.approx(sum(whole.divergences) / 134)
    ordered = sorted(whole.divergences)
    assert ordered[131] <= found.kl_p99.value <= ordered[132]  # 0.99 of 133 steps lies between these
    for each in (found.perplexity, found.perplexity_loss, found.top1, found.kl, found.kl_p99):
        assert each.low <= each.value <= each.high
        assert each.low < each.high


def test_without_a_reference_there_is_perplexity_alone() -> None:
    found = quality([score(logits(1), targets())], 0)
    assert (found.perplexity_loss, found.top1, found.kl, found.kl_p99) == (None, None, None, None)


def test_a_model_against_itself() -> None:
    found = quality([score(logits(1), targets(), logits(1))], 0)
    for each, value in ((found.perplexity_loss, 0.0), (found.top1, 1.0), (found.kl, 0.0), (found.kl_p99, 0.0)):
        assert each is not None
        assert (each.low, each.value, each.high) == (value, value, value)


def test_a_seed_gives_the_same_interval_and_another_one_another() -> None:
    windows = [TokenScores(np.random.default_rng(5).exponential(2, 400))]
    assert quality(windows, 3) == quality(windows, 3)
    assert quality(windows, 3).perplexity.low != quality(windows, 4).perplexity.low


def test_draws_are_whole_blocks_of_one_window() -> None:
    lengths = [BLOCK_TOKENS + 5, BLOCK_TOKENS, 3]
    edges = [0, BLOCK_TOKENS, BLOCK_TOKENS + 5, 2 * BLOCK_TOKENS + 5, 2 * BLOCK_TOKENS + 8]
    blocks = {tuple(range(start, stop)) for start, stop in pairwise(edges)}
    for places in draw(lengths, 0)[:50]:
        left = places.tolist()
        for _ in blocks:
            (block,) = (each for each in blocks if tuple(left[: len(each)]) == each)
            left = left[len(block) :]
        assert left == []


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(2).normal(5, 1, 100 * BLOCK_TOKENS)
    found = interval(lambda at: float(values[at].mean()), len(values), draw([len(values)], 0))
    half = 1.96 / math.sqrt(len(values))
    assert found.high - found.low == pytest.approx(2 * half, rel=0.2)


def test_tokens_that_are_alike_by_neighbourhood_widen_it() -> None:
    values = np.repeat(np.random.default_rng(2).normal(5, 1, 100), BLOCK_TOKENS)
    found = interval(lambda at: float(values[at].mean()), len(values), draw([len(values)], 0))
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(100), rel=0.2)
