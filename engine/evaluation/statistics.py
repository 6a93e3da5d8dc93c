"""What is told of predicted tokens, from their definitions. Pure. T positions, V ids, N tokens, nats throughout."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.compile.bootstrap import Interval, draw, interval, slabs
from engine.compile.divergence import Float32, Float64, divergences, log_softmax

SLAB_ROWS = 64  # in float64 at a time: all rows of a window would take several times its logits
TAIL = 0.99


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Of N tokens, or of none yet. losses: -log p of the token. The rest only where there is a reference.

    reference_losses: its own. divergences: KL(reference || model). agreements: whether both have one likeliest token.
    """

    losses: Float64
    reference_losses: Float64 | None = None
    divergences: Float64 | None = None
    agreements: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one model over `tokens` scored tokens.

    perplexity_loss: its perplexity over the reference's, less 1. top1: share of positions with the reference's
    likeliest token. kl, kl_p99: mean and 99th percentile of KL(reference || model). None without a reference.
    """

    tokens: int
    perplexity: Interval
    perplexity_loss: Interval | None = None
    top1: Interval | None = None
    kl: Interval | None = None
    kl_p99: Interval | None = None


def score(logits: Float32, targets: Sequence[int], reference: Float32 | None = None) -> TokenScores:
    """Scores of the tokens that follow T positions. logits, reference: [T, V]; targets: T ids."""
    pieces = [
        _score(logits[start:stop], targets[start:stop], None if reference is None else reference[start:stop])
        for start, stop in slabs(len(targets), SLAB_ROWS)
    ]
    return joined(pieces)


def joined(pieces: Sequence[TokenScores]) -> TokenScores:
    """Scores one after the other; at least one piece, all with a reference or all without."""
    losses = np.concatenate([piece.losses for piece in pieces])
    if pieces[0].divergences is None:
        return TokenScores(losses)
    return TokenScores(
        losses,
        np.concatenate([piece.reference_losses for piece in pieces if piece.reference_losses is not None]),
        np.concatenate([piece.divergences for piece in pieces if piece.divergences is not None]),
        np.concatenate([piece.agreements for piece in pieces if piece.agreements is not None]),
    )


def quality(windows: Sequence[TokenScores], seed: int) -> Quality:
    """The figures of a model from the scores of each window; the same seed draws the same tokens for every model."""
    scores, draws = joined(windows), draw([len(window.losses) for window in windows], seed)
    count, losses = len(scores.losses), scores.losses
    perplexity = interval(lambda at: float(np.exp(losses[at].mean())), count, draws)
    if scores.reference_losses is None or scores.divergences is None or scores.agreements is None:
        return Quality(count, perplexity)
    lost, kl, agrees = losses - scores.reference_losses, scores.divergences, scores.agreements
    return Quality(
        tokens=count,
        perplexity=perplexity,
        perplexity_loss=interval(lambda at: float(np.expm1(lost[at].mean())), count, draws),
        top1=interval(lambda at: float(agrees[at].mean()), count, draws),
        kl=interval(lambda at: float(kl[at].mean()), count, draws),
        kl_p99=interval(lambda at: float(np.quantile(kl[at], TAIL)), count, draws),
    )


def _score(logits: Float32, targets: Sequence[int], reference: Float32 | None) -> TokenScores:
    rows = np.arange(len(targets))
    found = log_softmax(logits)
    if reference is None:
        return TokenScores(-found[rows, targets])
    expected = log_softmax(reference)
    agreements = reference.argmax(axis=1) == logits.argmax(axis=1)
    # Rounding may take the divergence of two equal predictions below nothing.
    apart = np.maximum(divergences(expected, found), 0.0)
    return TokenScores(-found[rows, targets], -expected[rows, targets], apart, agreements)
