"""Which masked tokens of a block a pass settles. A pass predicts all of them; what it is not sure of stays masked.

Definitions: SDAR (JetAstra, 2025) for confidence and sequence, EB-Sampler (Ben-Hamu and others, 2025) for entropy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.request import Denoising, TokenLogprob, Unmasking


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a pass says of a masked token.

    confidence: the token's probability at the request's temperature (greedy: at 1), before top-k, top-p and min-p.
    entropy: of that distribution, in nats.
    """

    token: int
    confidence: float
    entropy: float
    logprob: TokenLogprob | None = None


def scheduled(settings: Denoising, step: int) -> int:
    """How many tokens the pass `step` of a block, counted from 0, must settle so that `steps` passes are enough."""
    whole, rest = divmod(settings.block_length, settings.steps)
    return whole + (step < rest)


def unmask(settings: Denoising, step: int, predictions: Sequence[Prediction]) -> list[int]:
    """Indices, ascending, of the predictions that are settled; `predictions` are of the masked tokens, in order.

    Equals go by position. At least the scheduled number, or all if fewer are masked.
    """
    least = min(scheduled(settings, step), len(predictions))
    order, count = _RULES[settings.unmasking](settings, predictions)
    return sorted(order[: max(least, count)])


def _dynamic(settings: Denoising, predictions: Sequence[Prediction]) -> tuple[list[int], int]:
    sure = sum(prediction.confidence > settings.confidence_threshold for prediction in predictions)
    return _surest_first(predictions), sure


def _static(_: Denoising, predictions: Sequence[Prediction]) -> tuple[list[int], int]:
    return _surest_first(predictions), 0


def _sequential(_: Denoising, predictions: Sequence[Prediction]) -> tuple[list[int], int]:
    return list(range(len(predictions))), 0


def _entropy_bound(settings: Denoising, predictions: Sequence[Prediction]) -> tuple[list[int], int]:
    order = sorted(range(len(predictions)), key=lambda index: predictions[index].entropy)
    total, count = 0.0, 0
    for index in order:
        total += predictions[index].entropy
        if total > settings.entropy_bound:
            break
        count += 1
    return order, count


def _surest_first(predictions: Sequence[Prediction]) -> list[int]:
    return sorted(range(len(predictions)), key=lambda index: -predictions[index].confidence)


# By rule: the order in which masked tokens are settled, and how many of them the rule takes by itself.
_RULES: dict[Unmasking, Callable[[Denoising, Sequence[Prediction]], tuple[list[int], int]]] = {
    Unmasking.DYNAMIC_CONFIDENCE: _dynamic,
    Unmasking.STATIC_CONFIDENCE: _static,
    Unmasking.SEQUENTIAL: _sequential,
    Unmasking.ENTROPY_BOUND: _entropy_bound,
}
