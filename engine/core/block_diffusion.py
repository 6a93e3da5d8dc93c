"""A block of tokens made out of masks, step by step. Tokens only: no arrays, no slots.
A sequence is cut into blocks of B positions. Rows of a block see each other both ways and every block before. Of a
block that is not settled no key and no value is kept; a settled one is computed once more, in the step that also begins
with the next, and then kept.
Which masked tokens of a block a step settles. A step predicts all of them; what it is not sure of stays masked.
Definitions: SDAR (JetAstra, 2025) for confidence and sequence, EB-Sampler (Ben-Hamu and others, 2025) for entropy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from engine.request import Denoising, TokenLogprob, Unmasking


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a step says of a masked token. confidence: its probability at the request's temperature (greedy: at 1),
    before any cut. entropy: of that distribution, in nats."""

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
    Equals go by position. At least the scheduled number, or all if fewer are masked."""
    rule, order, sure = settings.unmasking, list(range(len(predictions))), 0
    if rule is Unmasking.ENTROPY_BOUND:
        order.sort(key=lambda index: predictions[index].entropy)
        totals = accumulate(predictions[index].entropy for index in order)
        sure = sum(total <= settings.entropy_bound for total in totals)
    elif rule is not Unmasking.SEQUENTIAL:
        order.sort(key=lambda index: -predictions[index].confidence)
        if rule is Unmasking.DYNAMIC_CONFIDENCE:
            sure = sum(prediction.confidence > settings.confidence_threshold for prediction in predictions)
    return sorted(order[: max(scheduled(settings, step), sure)])


@dataclass(slots=True)
class ActiveBlock:
    """The block of a sequence that is being denoised.
    known: how many of its first tokens the sequence has already: the rest of the prompt behind its last whole block.
    step: steps that have denoised it. settled: by position in the block, what was chosen."""

    settings: Denoising
    known: int
    step: int = 0
    settled: dict[int, Prediction] = field(default_factory=dict)

    @property
    def masked(self) -> tuple[int, ...]:
        return tuple(place for place in range(self.known, self.settings.block_length) if place not in self.settled)

    def row_tokens(self, known: Sequence[int]) -> tuple[int, ...]:
        """The tokens of the block's rows: what is known of it, then what is settled, masks elsewhere."""
        mask, places = self.settings.mask_token, range(self.known, self.settings.block_length)
        return (*known, *(self.settled[place].token if place in self.settled else mask for place in places))

    def take(self, predictions: Sequence[Prediction]) -> None:
        """Settle some of the masked tokens; `predictions` are of all of them, in order."""
        masked = self.masked
        for index in unmask(self.settings, self.step, predictions):
            self.settled[masked[index]] = predictions[index]
        self.step += 1

    @property
    def leading(self) -> tuple[Prediction, ...]:
        end = next(iter(self.masked), self.settings.block_length)
        return tuple(self.settled[place] for place in range(self.known, end))

    def begin(self, known: int) -> None:
        """Denoise another block, of which the sequence has `known` tokens."""
        self.known, self.step = known, 0
        self.settled.clear()
