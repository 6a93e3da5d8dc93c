"""Logits to token ids. Order, per row:

0. tokens that the grammar does not allow get -infinity, which no later step takes back
1. logit bias; stop tokens forbidden while fewer than min_tokens were generated, unless the grammar allows no others;
   a spent thinking budget leaves one token
2. repetition penalty (over prompt and completion), then frequency and presence penalties (over the completion)
3. temperature 0 (below 1e-5): the largest logit, lowest id first among equals
4. temperature -> top-k -> softmax -> top-p -> min-p -> draw

Reported log-probabilities are those of the model: log-softmax of the logits before all steps.
Every operation is per row, and the random number depends on (seed, index of the token) alone:
a row gives the same token in any batch, and again after a restart. Shapes: R = rows, V = vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.request import SamplingParams, TokenLogprob
from engine.sampling.thinking_budget import forced_token

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

FIRST_CANDIDATES = 256
BLOCK = 64
UNLIKELY = -9999.0
NEARLY_GREEDY = 1e-5  # dividing by less overflows float32


@dataclass(frozen=True, slots=True)
class RowContext:
    """What one row needs besides its logits. `completion` are the tokens generated before it, guesses included.

    prompt: its tokens, each once will do.
    forbidden [V]: true for tokens that the grammar does not allow; None without a grammar.
    """

    params: SamplingParams
    seed: int
    prompt: Sequence[int]
    completion: Sequence[int]
    forbidden: NDArray[np.bool_] | None = None

    @property
    def index(self) -> int:
        """Number of the token being chosen, from 0."""
        return len(self.completion)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The chosen token and, if asked for, its log-probability."""

    token_id: int
    logprob: TokenLogprob | None


class BadLogits(ValueError):
    """A row of logits holds no number to choose from."""


def sample(logits: Floats, rows: Sequence[RowContext]) -> list[SampledToken | BadLogits]:
    """Choose one token per row of logits [R, V]; a row of NaN gives BadLogits in its place."""
    adjusted = _adjust(logits, rows)
    tokens = adjusted.argmax(axis=1)
    usable = np.isfinite(adjusted[np.arange(len(rows)), tokens])
    drawn = [index for index, row in enumerate(rows) if usable[index] and not _is_greedy(row.params)]
    if drawn:
        tokens[drawn] = _draw(adjusted[drawn], [rows[index] for index in drawn])
    logprobs = _logprobs(logits, tokens, rows, usable)
    return [
        SampledToken(int(tokens[index]), logprobs.get(index))
        if usable[index]
        else BadLogits("the graph returned no finite logits for this request")
        for index in range(len(rows))
    ]


def _is_greedy(params: SamplingParams) -> bool:
    return params.temperature < NEARLY_GREEDY or params.top_k == 1


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the index-th token of a seed: SplitMix64 (Steele, Lea, Flood 2014), top 53 bits."""
    state = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = ((state ^ (state >> shift)) * factor) & 0xFFFFFFFFFFFFFFFF
    return (state >> 11) / float(1 << 53)


def _adjust(logits: Floats, rows: Sequence[RowContext]) -> Floats:
    """Steps 0 to 2; copies only if some row asks for them."""
    touched = [index for index, row in enumerate(rows) if _is_adjusted(row)]
    if not touched:
        return logits
    adjusted = logits.copy()
    for index in touched:
        _adjust_row(adjusted[index], rows[index])
    return adjusted


def _is_adjusted(row: RowContext) -> bool:
    params = row.params
    return row.forbidden is not None or bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.frequency_penalty
        or params.presence_penalty
        or row.index < params.min_tokens
        or params.thinking_budget is not None
    )


def _adjust_row(values: Floats, row: RowContext) -> None:
    params = row.params
    if row.forbidden is not None:
        np.copyto(values, -np.inf, where=row.forbidden[: len(values)])
    for token, bias in params.logit_bias:
        values[token] += bias
    if row.index < params.min_tokens:
        stops = list(params.stop_token_ids)
        allowed = values[stops]
        values[stops] = -np.inf
        if row.forbidden is not None and not np.isfinite(values.max()):
            values[stops] = allowed
    if params.repetition_penalty != 1.0:
        seen = np.zeros(len(values), np.bool_)
        for tokens in (row.prompt, row.completion):
            seen[np.asarray(tokens, np.int64)] = True
        old = values[seen]
        penalty = np.float32(params.repetition_penalty)
        values[seen] = np.where(old > 0, old / penalty, old * penalty)
    if (params.frequency_penalty or params.presence_penalty) and row.completion:
        used, counts = np.unique(np.array(row.completion, np.int64), return_counts=True)
        values[used] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    forced = None if params.thinking_budget is None else forced_token(params.thinking_budget, row.completion)
    if forced is not None and (row.forbidden is None or not row.forbidden[forced]):
        values[:] = -np.inf
        values[forced] = 0.0


def _draw(values: Floats, rows: Sequence[RowContext]) -> list[int]:
    """Step 4 for rows [R, V] that draw. What costs V operations is done for all rows at once."""
    scaled = values * np.array([[1.0 / row.params.temperature] for row in rows], np.float32)
    maxima = _block_maxima(scaled)
    open_ended = [index for index, row in enumerate(rows) if not row.params.top_k]
    weights = scaled[open_ended]
    weights = np.exp((weights - weights.max(axis=1, keepdims=True)).astype(np.float64))
    whole = dict(zip(open_ended, weights, strict=True))
    tokens = []
    for index, row in enumerate(rows):
        params, number = row.params, uniform(row.seed, row.index)
        if not params.top_k and params.top_p >= 1.0 and params.min_p == 0.0:
            tokens.append(_place(whole[index], number))
            continue
        total = float(whole[index].sum()) if index in whole else 0.0
        candidates = _candidates(scaled[index], maxima[index], total, params)
        kept = np.exp((scaled[index][candidates] - scaled[index][candidates[0]]).astype(np.float64))
        tokens.append(int(candidates[_place(kept[: _cut(kept, params)], number)]))
    return tokens


def _place(weights: NDArray[np.float64], number: float) -> int:
    """Inverse of the cumulative distribution: the index whose share of the weights holds `number`."""
    cumulative = np.cumsum(weights)
    place = int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
    # Rounding may lead beyond the end, where ids that must not be drawn may lie.
    return place if place < len(weights) else int(np.flatnonzero(weights)[-1])


def _block_maxima(values: Floats) -> Floats:
    """Largest value of each whole block of 64 ids: [R, V] in, [R, V // 64] out."""
    blocks = values.shape[1] // BLOCK
    return np.asarray(values[:, : blocks * BLOCK].reshape(len(values), blocks, BLOCK).max(axis=2))


def _candidates(scaled: Floats, maxima: Floats, total: float, params: SamplingParams) -> Ids:
    """Ids that can survive top-k, or top-p and min-p, likeliest first; sorts the whole vocabulary last."""
    if params.top_k:
        return top_ids(scaled, params.top_k, maxima)
    count = FIRST_CANDIDATES
    while True:
        ids = top_ids(scaled, count, maxima)
        weights = np.exp((scaled[ids] - scaled[ids[0]]).astype(np.float64)) / total
        done_by_p = params.top_p < 1.0 and weights.sum() >= params.top_p
        done_by_min = params.min_p > 0.0 and weights[-1] < params.min_p * weights[0]
        if done_by_p or done_by_min or len(ids) == len(scaled):
            return ids[: _nucleus(weights, params.top_p)]
        count *= 8


def _nucleus(weights: NDArray[np.float64], top_p: float) -> int:
    """How many of the sorted weights (fractions of the whole) reach top_p; at least one."""
    if top_p >= 1.0:
        return len(weights)
    return int(np.searchsorted(np.cumsum(weights), top_p, side="left")) + 1


def _cut(weights: NDArray[np.float64], params: SamplingParams) -> int:
    """Candidates left after top-p (of what top-k left) and min-p; at least one."""
    count = len(weights)
    if params.top_k and params.top_p < 1.0:
        count = min(count, _nucleus(weights / weights.sum(), params.top_p))
    if params.min_p > 0.0:
        count = min(count, int(np.searchsorted(-weights, -params.min_p, side="right")))
    return max(1, count)


def top_ids(values: Floats, count: int, maxima: Floats | None = None) -> Ids:
    """Ids of the `count` largest of values [V], largest first, lowest id first among equals.

    The count-th largest block maximum bounds the count-th largest value from below, so few values are sorted.
    """
    size = len(values)
    if count >= size:
        return np.argsort(-values, kind="stable")
    if maxima is None:
        maxima = _block_maxima(values[None])[0]
    if len(maxima) > 4 * count:
        bound = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    else:
        bound = np.partition(values, size - count)[size - count]
    ids: Ids = np.flatnonzero(values >= bound)
    return ids[np.argsort(-values[ids], kind="stable")[:count]]


def _logprobs(
    logits: Floats, tokens: Ids, rows: Sequence[RowContext], usable: NDArray[np.bool_]
) -> dict[int, TokenLogprob]:
    """Log-probabilities of the rows that ask for them, from the unadjusted logits."""
    asked = [index for index, row in enumerate(rows) if usable[index] and row.params.logprobs is not None]
    if not asked:
        return {}
    values = logits[asked]
    peaks = values.max(axis=1, keepdims=True)
    normalisers = peaks[:, 0] + np.log(np.exp((values - peaks).astype(np.float64)).sum(axis=1))
    found = {}
    for place, index in enumerate(asked):
        row = values[place]
        ids = top_ids(row, rows[index].params.logprobs or 0) if rows[index].params.logprobs else ()
        shares = [(int(i), max(UNLIKELY, float(row[i]) - float(normalisers[place]))) for i in (tokens[index], *ids)]
        found[index] = TokenLogprob(*shares[0], tuple(shares[1:]))
    return found
