"""Every model over every window of a text: logits of one window at a time, of which only scores are kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.compile.check.parity import (
    SLAB_ROWS,
    Float32,
    Float64,
    Interval,
    divergences,
    draw,
    interval,
    log_softmax,
    slabs,
)
from engine.errors import BundleError, EngineFailure
from engine.evaluation.models import EvaluatedModel

# T positions, V ids, N tokens; nats throughout.
TAIL = 0.99


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Of N tokens, or of none yet. The rest only where there is a reference."""

    losses: Float64  # -log p of the token
    reference_losses: Float64 | None = None  # its own
    divergences: Float64 | None = None  # KL(reference || model)
    agreements: NDArray[np.bool_] | None = None  # in the likeliest token


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures of one model over `tokens` scored tokens. None without a reference."""

    tokens: int
    perplexity: Interval
    perplexity_loss: Interval | None = None  # its perplexity over the reference's, less 1
    top1: Interval | None = None  # share of positions with the reference's likeliest token
    kl: Interval | None = None  # mean of KL(reference || model)
    kl_p99: Interval | None = None  # its 99th percentile


def score(logits: Float32, targets: Sequence[int], reference: Float32 | None = None) -> TokenScores:
    """Scores of the tokens that follow T positions. logits, reference: [T, V]; targets: T ids."""
    parts = [slice(*slab) for slab in slabs(len(targets), SLAB_ROWS)]
    return joined([_score(logits[at], targets[at], None if reference is None else reference[at]) for at in parts])


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
    rows, found = np.arange(len(targets)), log_softmax(logits)
    if reference is None:
        return TokenScores(-found[rows, targets])
    expected = log_softmax(reference)
    agreements = reference.argmax(axis=1) == logits.argmax(axis=1)
    # Rounding may take the divergence of two equal predictions below nothing.
    apart = np.maximum(divergences(expected, found), 0.0)
    return TokenScores(-found[rows, targets], -expected[rows, targets], apart, agreements)


@dataclass(frozen=True, slots=True)
class TextWindow:
    """Tokens that are read together; those from `first` on are predicted from all before them in the window."""

    tokens: tuple[int, ...]
    first: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the model reads: the last token is only predicted."""
        return self.tokens[:-1]

    @property
    def targets(self) -> tuple[int, ...]:
        return self.tokens[self.first :]


def cut(tokens: Sequence[int], context: int, stride: int, bos: tuple[int, ...] = ()) -> list[TextWindow]:
    """Windows of at most `context` tokens, each `stride` tokens behind the one before and beginning with `bos`. A token
    is scored once, in the first window that holds it, behind most of its past; the first of a window without `bos` is
    not scored there. Empty when nothing can be scored."""
    room = context - len(bos)
    windows: list[TextWindow] = []
    scored = 0
    for start in range(0, len(tokens), max(1, min(stride, room))):
        stop = min(start + room, len(tokens))
        first = max(scored, start + (0 if bos else 1))
        if first < stop:
            windows.append(TextWindow((*bos, *tokens[start:stop]), len(bos) + first - start))
        scored = stop
        if stop == len(tokens):
            break
    return windows


DEFAULT_CONTEXT = 512


def context_of(models: Sequence[EvaluatedModel], wanted: int) -> int:
    """Tokens of a window, 0 = the default one as far as all models hold it. BundleError when one does not."""
    narrowest = min(models, key=lambda model: model.longest)
    if wanted > narrowest.longest:
        raise BundleError(f"--context {wanted}: {narrowest.name} holds at most {narrowest.longest} tokens of a text")
    return wanted or min(DEFAULT_CONTEXT, narrowest.longest)


def windows_of(models: Sequence[EvaluatedModel], text: str, most: int, context: int, stride: int) -> list[TextWindow]:
    """The windows of a text, for all models the same. BundleError when it is too short, or means other tokens to one.
    most: tokens of it, 0 = all. stride: 0 = windows side by side."""
    first, tokens = models[0], models[0].vocabulary.tokens(text, most)
    for model in models[1:]:
        if model.vocabulary.size != first.vocabulary.size:
            raise BundleError(
                f"{model.name} has another vocabulary than {first.name}: {model.vocabulary.size} tokens, not "
                f"{first.vocabulary.size}"
            )
        if model.vocabulary.tokens(text, most) != tokens:
            raise BundleError(f"{model.name} has another vocabulary than {first.name}: the text is other tokens to it")
    windows = cut(tokens, context, stride or context, first.vocabulary.bos)
    if not windows:
        raise BundleError(f"the text has {len(tokens)} tokens: too few to predict one from those before it")
    return windows


def evaluate(
    models: Sequence[EvaluatedModel],
    reference: EvaluatedModel | None,
    windows: Sequence[TextWindow],
    advance: Callable[[int], None],
) -> tuple[list[list[TokenScores]], list[TokenScores]]:
    """Scores of each model by window, and those of the reference, [] without one. advance: told the tokens that a model
    has read. EngineFailure when logits are not finite."""
    found: list[list[TokenScores]] = [[] for _ in models]
    of_reference: list[TokenScores] = []
    for window in windows:
        expected = None if reference is None else _read(reference, window)
        if expected is not None:
            of_reference.append(score(expected, window.targets))
            advance(len(window.inputs))
        for model, scores in zip(models, found, strict=True):
            scores.append(score(_read(model, window), window.targets, expected))
            advance(len(window.inputs))
    return found, of_reference


def _read(model: EvaluatedModel, window: TextWindow) -> NDArray[np.float32]:
    logits = model.logits(window.inputs, first=window.first - 1)
    if not np.isfinite(logits).all():
        raise EngineFailure(f"{model.name} gave logits that are not finite")
    return logits
