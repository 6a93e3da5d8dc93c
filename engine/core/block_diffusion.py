"""A block of tokens made out of masks, step by step. Tokens only: no arrays, no slots.

A sequence is cut into blocks of B positions. Rows of a block see each other both ways and every block before. Of a
block that is not settled no key and no value is kept; a settled one is computed once more, in the step that also
begins with the next, and then kept.

Which masked tokens of a block a step settles. A step predicts all of them; what it is not sure of stays masked.

Definitions: SDAR (JetAstra, 2025) for confidence and sequence, EB-Sampler (Ben-Hamu and others, 2025) for entropy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.request import Denoising, TokenLogprob, Unmasking


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step says of a masked token.

    confidence: the token's probability at the request's temperature (greedy: at 1), before top-k, top-p and min-p.
    entropy: of that distribution, in nats.
    """

    token: int
    confidence: float
    entropy: float
    logprob: TokenLogprob | None = None


def scheduled(settings: Denoising, step: int) -> int:
    """How many tokens the step `step` of a block, counted from 0, must settle so that `steps` steps are enough."""
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


@dataclass(slots=True)
class ActiveBlock:
    """The block of a sequence that is being denoised.

    known: how many of its first tokens the sequence has already: the rest of the prompt behind its last whole block.
    step: steps that have denoised it. settled: by position in the block, what was chosen.
    """

    settings: Denoising
    known: int
    step: int = 0
    settled: dict[int, Prediction] = field(default_factory=dict)

    @property
    def masked(self) -> tuple[int, ...]:
        return tuple(place for place in range(self.known, self.settings.block_length) if place not in self.settled)

    def row_tokens(self, known: Sequence[int]) -> tuple[int, ...]:
        """The tokens of the block's rows: what is known of it, then what is settled, masks elsewhere."""
        mask = self.settings.mask_token
        rest = range(self.known, self.settings.block_length)
        return (*known, *(self.settled[place].token if place in self.settled else mask for place in rest))

    def take(self, predictions: Sequence[Prediction]) -> None:
        """Settle some of the masked tokens; `predictions` are of all of them, in order."""
        masked = self.masked
        for index in unmask(self.settings, self.step, predictions):
            self.settled[masked[index]] = predictions[index]
        self.step += 1

    @property
    def leading(self) -> tuple[Prediction, ...]:
        masked = self.masked
        end = masked[0] if masked else self.settings.block_length
        return tuple(self.settled[place] for place in range(self.known, end))

    def begin(self, known: int) -> None:
        """Denoise another block, of which the sequence has `known` tokens."""
        self.known, self.step = known, 0
        self.settled.clear()
