"""Block diffusion by its definition, one whole sequence at a time: no queue, no block, no step shared with anybody.

`predictor(tokens of the blocks before and of this one, masked positions)` says of each masked position a row of logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.request import Denoising, Unmasking

Predictor = Callable[[Sequence[int], Sequence[int]], NDArray[np.float64]]


@dataclass
class ByHand:
    """What came out, and how: for each block how many steps denoised it. confidences: as tokens were settled."""

    tokens: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    finish: str = "length"


def denoise(
    predictor: Predictor,
    prompt: Sequence[int],
    settings: Denoising,
    max_tokens: int,
    stops: Sequence[int] = (),
    limit: int = 10**9,
) -> ByHand:
    """Greedy: block after block, each until no mask is left; cut at the first stop token, max_tokens or the limit."""
    found, tokens, size = ByHand(), list(prompt), settings.block_length
    while True:
        start = len(tokens) // size * size
        block: list[int | None] = [*tokens[start:], *[None] * (start + size - len(tokens))]
        steps = 0
        while None in block:
            masked = [place for place, token in enumerate(block) if token is None]
            row = [settings.mask_token if token is None else token for token in block]
            logits = predictor([*tokens[:start], *row], [start + place for place in masked])
            for index in settled(logits, settings, steps):
                block[masked[index]] = int(np.argmax(without_mask(logits[index], settings)))
            steps += 1
        found.steps.append(steps)
        for token in block[len(tokens) - start :]:
            assert token is not None
            tokens.append(token)
            found.tokens.append(token)
            if token in stops:
                found.finish = "stop"
                return found
            if len(found.tokens) >= max_tokens or len(tokens) >= limit:
                return found


def without_mask(logits: NDArray[np.float64], settings: Denoising) -> NDArray[np.float64]:
    left = np.array(logits, np.float64)
    left[settings.mask_token] = -np.inf
    return left


def settled(logits: NDArray[np.float64], settings: Denoising, step: int) -> list[int]:
    """Indices of the rows [M, V] that one step settles."""
    spread = [np.exp(row - row.max()) for row in (without_mask(row, settings) for row in logits)]
    shares = [row / row.sum() for row in spread]
    surest = [float(row.max()) for row in shares]
    least = settings.block_length // settings.steps + (step < settings.block_length % settings.steps)
    by_confidence = sorted(range(len(shares)), key=lambda index: (-surest[index], index))
    if settings.unmasking is Unmasking.SEQUENTIAL:
        return list(range(min(least, len(shares))))
    if settings.unmasking is Unmasking.STATIC_CONFIDENCE:
        return by_confidence[:least]
    if settings.unmasking is Unmasking.DYNAMIC_CONFIDENCE:
        sure = [index for index in by_confidence if surest[index] > settings.confidence_threshold]
        return sure if len(sure) >= least else by_confidence[:least]
    entropies = [-float((row[row > 0] * np.log(row[row > 0])).sum()) for row in shares]
    order = sorted(range(len(shares)), key=lambda index: (entropies[index], index))
    within = int((np.cumsum([entropies[index] for index in order]) <= settings.entropy_bound).sum())
    return order[: max(least, within)]
