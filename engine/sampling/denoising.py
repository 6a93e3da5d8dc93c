"""Predicting the masked tokens of a block. Logits of a masked row are about its own place, not about the next.

Order, per row: the mask token gets -infinity, which no later step takes back; logit bias; stop tokens forbidden where
fewer than min_tokens precede; then as in `sampler.py` from step 3 on. The random number depends on the request's seed,
the token's index and the pass of its block alone: the same again after a restart, whoever shares the pass.
Reported log-probabilities are those of the model without its mask token, before bias.
"""

import numpy as np
from numpy.typing import NDArray

from engine.graphs.logits import FLOAT32, Logits
from engine.modes.unmasking import Prediction
from engine.request import Denoising, SamplingParams, TokenLogprob
from engine.sampling.drawing import CodedRow, draw
from engine.sampling.sampler import BadLogits, is_greedy, logprob_of, uniform
from engine.scheduling.plan import Segment

NO_WEIGHT = np.float32(-1e4)  # exp of it is 0, and 0 times it is no NaN


def predict(segment: Segment, logits: Logits, start: int) -> tuple[Prediction, ...] | BadLogits:
    """What a pass says of each masked token of a segment, whose rows [R, V] begin at `start`."""
    sequence, found = segment.sequence, []
    block = sequence.block
    assert block is not None
    first = segment.first_position - sequence.prompt_tokens
    for row, index in enumerate(segment.masked, start):
        place = first + index
        number = uniform(sequence.seed, (block.step << 40) + place)
        values = np.array(logits.rows(row, row + 1).decoded()[0])
        prediction = predict_row(values, sequence.request.params, block.settings, place, number)
        if prediction is None:
            return BadLogits("the graph returned no finite logits for this request")
        found.append(prediction)
    return tuple(found)


def predict_row(
    values: NDArray[np.float32], params: SamplingParams, settings: Denoising, index: int, number: float
) -> Prediction | None:
    """The prediction from logits [V], which are changed; None when they hold no number to choose from.

    index: of the token in the completion. number: at random in [0, 1).
    """
    values[settings.mask_token] = -np.inf
    plain = None if params.logprobs is None else np.array(values)
    for token, bias in params.logit_bias:
        values[token] += bias
    if index < params.min_tokens:
        values[list(params.stop_token_ids)] = -np.inf
    best = int(values.argmax())
    if not np.isfinite(values[best]):
        return None
    greedy = is_greedy(params)
    token = best if greedy else draw(CodedRow(values, FLOAT32), params, number)
    confidence, entropy = certainty(values, token, 1.0 if greedy else params.temperature)
    return Prediction(token, confidence, entropy, _logprob(plain, token, params))


def certainty(values: NDArray[np.float32], token: int, temperature: float) -> tuple[float, float]:
    """Probability of a token at a temperature, and the entropy of all in nats; `values` [V] may hold -infinity."""
    relative = np.maximum((values - values.max()) / np.float32(temperature), NO_WEIGHT)
    weights = np.exp(relative)
    total = float(weights.sum(dtype=np.float64))
    mean = float((weights * relative).sum(dtype=np.float64)) / total
    return float(weights[token]) / total, float(np.log(total)) - mean


def _logprob(plain: NDArray[np.float32] | None, token: int, params: SamplingParams) -> TokenLogprob | None:
    return None if plain is None else logprob_of(Logits.of(plain[None]), token, params)
