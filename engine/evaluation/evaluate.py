"""Every model over every window of a text: logits of one window at a time, of which only scores are kept."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.errors import BundleError, EngineFailure
from engine.evaluation.models import EvaluatedModel
from engine.evaluation.statistics import TokenScores, score
from engine.evaluation.windows import TextWindow, cut

DEFAULT_CONTEXT = 512


def context_of(models: Sequence[EvaluatedModel], wanted: int) -> int:
    """Tokens of a window, 0 = the default one as far as all models hold it. BundleError when one does not."""
    narrowest = min(models, key=lambda model: model.longest)
    if wanted > narrowest.longest:
        raise BundleError(f"--context {wanted}: {narrowest.name} holds at most {narrowest.longest} tokens of a text")
    return wanted or min(DEFAULT_CONTEXT, narrowest.longest)


def windows_of(models: Sequence[EvaluatedModel], text: str, most: int, context: int, stride: int) -> list[TextWindow]:
    """The windows of a text, for all models the same. BundleError when it is too short, or means other tokens to one.

    most: tokens of it, 0 = all. stride: 0 = windows side by side.
    """
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
    """Scores of each model by window, and those of the reference, [] without one.

    advance: told the tokens that a model has read. EngineFailure when logits are not finite.
    """
    found: list[list[TokenScores]] = [[] for _ in models]
    of_reference: list[TokenScores] = []
    for window in windows:
        expected = None
        if reference is not None:
            expected = _read(reference, window)
            of_reference.append(score(expected, window.targets))
            advance(len(window.inputs))
        for model, scores in zip(models, found, strict=True):
            scores.append(score(_read(model, window), window.targets, expected))
            advance(len(window.inputs))
    return found, of_reference


def _read(model: EvaluatedModel, window: TextWindow) -> NDArray[np.float32]:
    """Logits [targets, vocab]: of each target at the position before it."""
    logits = model.logits(window.inputs)[window.first - 1 :]
    if not np.isfinite(logits).all():
        raise EngineFailure(f"{model.name} gave logits that are not finite")
    return logits
