"""Logits to token ids. Order, per row:

0. tokens that the grammar does not allow get -infinity, which no later step takes back
1. logit bias; stop tokens forbidden while fewer than min_tokens were generated, unless the grammar allows no others;
   a spent thinking budget leaves one token; of a transcript what its rules forbid (`forbid`)
2. repetition penalty (over prompt and completion), then frequency and presence penalties (over the completion)
3. temperature 0 (below 1e-5): the largest logit, lowest id first among equals
4. temperature -> top-k -> softmax -> top-p -> min-p -> draw

Reported log-probabilities are those of the model: log-softmax of the logits before all steps, of a transcript after 2.
Every operation is per row, and the random number depends on (seed, index of the token) alone:
a row gives the same token in any batch, and again after a restart. Rows are sampled as the graph stored them: steps 1
and 2 need real numbers of a row, steps 3 and 4 do not. Shapes: R = rows, V = vocabulary.

A bound on thinking: when a reasoning block has had its tokens, the tokens that close it are forced.

A pure function of the completion so far, so that it holds for guesses, preemption and the next worker alike.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.tensors import Array
from engine.grammar.masks import Forbidden
from engine.request import SamplingParams, SpeechRules, ThinkingBudget, TokenLogprob
from engine.runtime.interface import FLOAT32, Logits
from engine.sampling.drawing import CodedRow, draw, top_ids


def forbid(values: NDArray[np.float32], completion: Sequence[int], rules: SpeechRules) -> None:
    """Give -infinity to the logits [V] that must not come next in a transcript behind `completion`, in place.
    As Whisper was trained to write it (Radford et al. 2022, s. 2.3): segments begin and end with a time, so times come
    in pairs, but for the first and the last, and never go back. Where all times together are likelier than each other
    token, a time is written."""
    values[list(rules.suppressed)] = -np.inf
    if not completion:
        values[list(rules.first)] = -np.inf
    values[rules.first_time - 1] = -np.inf  # what says that there are no times
    if rules.times:
        _keep_order(values, completion, rules)
        _prefer_times(values, rules)
    else:
        values[rules.first_time :] = -np.inf


def _keep_order(values: NDArray[np.float32], completion: Sequence[int], rules: SpeechRules) -> None:
    first = rules.first_time
    if not completion:
        values[:first] = -np.inf
        values[first + rules.latest_start + 1 :] = -np.inf
        return
    is_time = completion[-1] >= first
    was_time = len(completion) < 2 or completion[-2] >= first
    if is_time and was_time:  # a segment has begun
        values[first:] = -np.inf
    elif is_time:  # a segment has ended: another one begins, or the text ends
        values[: rules.end] = -np.inf
    last = next((token for token in reversed(completion) if token >= first), None)
    if last is not None:  # a segment is never empty, but the next one may begin where it has ended
        values[first : last if is_time and not was_time else last + 1] = -np.inf


def _prefer_times(values: NDArray[np.float32], rules: SpeechRules) -> None:
    times, others = values[rules.first_time :], values[: rules.first_time]
    peak, best = float(times.max(initial=-np.inf)), float(others.max(initial=-np.inf))
    if np.isfinite(peak) and peak + float(np.log(np.exp(times - np.float32(peak)).sum(dtype=np.float64))) > best:
        others[:] = -np.inf


@dataclass(frozen=True, slots=True)
class RowContext:
    """What one row needs besides its logits. `completion` are the tokens generated before it, guesses included.
    prompt: its tokens, each once will do. forbidden [V]: true for tokens that the grammar does not allow; None without
    a grammar."""

    params: SamplingParams
    seed: int
    prompt: Sequence[int]
    completion: Sequence[int]
    forbidden: NDArray[np.bool_] | None = None

    @property
    def index(self) -> int:
        return len(self.completion)


def forced_token(budget: ThinkingBudget, completion: Sequence[int]) -> int | None:
    """The token that must come next, None while the model is free."""
    opening, closing = budget.opening, budget.closing
    # The reasoning begins at once if the prompt opened it; an answer that does not open with it has none.
    opened = _find(completion, opening, 0, len(opening) + budget.opens_within) if opening else 0
    if opened is None or len(completion) - (start := opened + len(opening)) < budget.tokens:
        return None
    # A model that closes in time, or was made to, has done so before this place.
    if _find(completion, closing, start, start + budget.tokens + 2 * len(closing)) is not None:
        return None
    sizes = range(min(len(closing) - 1, len(completion) - start), 0, -1)
    return closing[next((size for size in sizes if tuple(completion[-size:]) == closing[:size]), 0)]


def _find(tokens: Sequence[int], wanted: tuple[int, ...], start: int, stop: int) -> int | None:
    """First place in [start, stop) where `wanted` begins and ends."""
    last = min(stop, len(tokens)) - len(wanted) + 1
    with suppress(ValueError):
        while start < last:
            start = tokens.index(wanted[0], start, last)
            if tuple(tokens[start : start + len(wanted)]) == wanted:
                return start
            start += 1
    return None


def has_changes(row: RowContext) -> bool:
    """Whether a step other than the grammar's applies to a row."""
    params = row.params
    has_penalty = params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
    has_rules = params.thinking_budget is not None or params.speech is not None or row.index < params.min_tokens
    return bool(params.logit_bias or has_penalty or has_rules)


def adjust(values: NDArray[np.float32], row: RowContext) -> None:
    """Change the logits [V] of a row in place; a token that must not be chosen gets -infinity."""
    params = row.params
    if row.forbidden is not None:
        values[np.flatnonzero(row.forbidden[: len(values)])] = -np.inf
    for token, bias in params.logit_bias:
        values[token] += bias
    if params.speech is not None:
        forbid(values, row.completion, params.speech)
    if row.index < params.min_tokens:
        _delay_stop(values, row)
    if params.repetition_penalty != 1.0:
        seen, penalty = np.zeros(len(values), np.bool_), np.float32(params.repetition_penalty)
        for tokens in (row.prompt, row.completion):
            seen[np.asarray(tokens, np.int64)] = True
        old = values[seen]
        values[seen] = np.where(old > 0, old / penalty, old * penalty)
    if (params.frequency_penalty or params.presence_penalty) and row.completion:
        used, counts = np.unique(np.array(row.completion, np.int64), return_counts=True)
        values[used] -= (params.frequency_penalty * counts + params.presence_penalty).astype(np.float32)
    forced = None if params.thinking_budget is None else forced_token(params.thinking_budget, row.completion)
    if forced is not None and (row.forbidden is None or not row.forbidden[forced]):
        values[:] = -np.inf
        values[forced] = 0.0


def _delay_stop(values: NDArray[np.float32], row: RowContext) -> None:
    """Forbid the stop tokens, unless the grammar allows no others."""
    stops = list(row.params.late_token_ids)
    allowed = values[stops]
    values[stops] = -np.inf
    if row.forbidden is not None and not np.isfinite(values.max()):
        values[stops] = allowed


UNLIKELY = -9999.0
NEARLY_GREEDY = 1e-5  # dividing by less overflows float32


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprob: TokenLogprob | None


class BadLogits(ValueError):
    """A row of logits holds no number to choose from."""


def sample(
    logits: Logits, rows: Sequence[RowContext], places: Sequence[int] | None = None
) -> list[SampledToken | BadLogits]:
    """Choose one token for each of `rows`; a row of NaN gives BadLogits in its place.
    places: which row of the logits [R, V] belongs to each; all of them in order when it is left out. No second thread
    takes rows: the operations of a row are so short that two threads wait for the GIL, not for them."""
    if logits.encoding.dtype == "float16":  # which no processor compares or sorts as it is
        logits = Logits.of(logits.decoded())
    return [
        _sample_row(logits, place, row)
        for place, row in zip(range(len(rows)) if places is None else places, rows, strict=True)
    ]


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < NEARLY_GREEDY or params.top_k == 1


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the index-th token of a seed: SplitMix64 (Steele, Lea, Flood 2014), top 53 bits."""
    state = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = ((state ^ (state >> shift)) * factor) & 0xFFFFFFFFFFFFFFFF
    return (state >> 11) / float(1 << 53)


def _sample_row(logits: Logits, place: int, row: RowContext) -> SampledToken | BadLogits:
    if row.params.speech is not None:
        values = np.array(logits.rows(place, place + 1).decoded())
        adjust(values[0], row)
        logits, place = Logits.of(values), 0
    coded = CodedRow(logits.codes[place], logits.encoding)
    token = _choose(coded, row) if row.params.speech is None else _choose_plain(coded, row)
    if token is None:
        return BadLogits("the graph returned no finite logits for this request")
    return SampledToken(token, logprob_of(logits.rows(place, place + 1), token, row.params))


def _choose(coded: CodedRow, row: RowContext) -> int | None:
    """Steps 0 to 4; None when there is no number to choose from."""
    is_plain = not has_changes(row)
    if row.forbidden is None and is_plain:
        return _choose_plain(coded, row)
    if row.forbidden is not None and is_plain:
        forbidden = row.forbidden[: len(coded.values)]
        if 2 * np.count_nonzero(forbidden) >= len(forbidden):  # a row of its own of what is allowed
            allowed = np.flatnonzero(~forbidden)
            token = _choose_plain(CodedRow(coded.values[allowed], coded.encoding), row) if len(allowed) else None
            return None if token is None else int(allowed[token])
        if is_greedy(row.params) and coded.values.dtype.kind == "u":
            return _largest_allowed(coded.values, forbidden)
    values = np.array(coded.encoding.decode(coded.values))
    adjust(values, row)
    return _choose_plain(CodedRow(values, FLOAT32), row)


def _choose_plain(coded: CodedRow, row: RowContext) -> int | None:
    """Steps 3 and 4."""
    if coded.values.dtype.kind != "f" and not is_greedy(row.params):
        return draw(coded, row.params, uniform(row.seed, row.index))
    best = int(coded.values.argmax())
    if not np.isfinite(coded.values[best]):
        return None
    return best if is_greedy(row.params) else draw(coded, row.params, uniform(row.seed, row.index))


def _largest_allowed(codes: Array, forbidden: Forbidden) -> int:
    """Of unsigned codes; the lowest id among equals. Something is allowed."""
    kept = (forbidden.view(np.int8) - np.int8(1)).astype(f"i{codes.itemsize}").view(codes.dtype)
    best = int(np.bitwise_and(codes, kept).argmax())
    return int(np.argmin(forbidden)) if forbidden[best] else best  # then every allowed code is 0, as the forbidden are


def logprob_of(logits: Logits, token: int, params: SamplingParams) -> TokenLogprob | None:
    """Log-probabilities of a row [1, V] that asks for them, from the unadjusted logits."""
    if params.logprobs is None:
        return None
    values = logits.decoded()[0]
    peak = values.max()
    normaliser = float(peak) + float(np.log(np.exp(values - peak).sum(dtype=np.float64)))
    ids = top_ids(values, params.logprobs) if params.logprobs else ()
    shares = [(int(i), max(UNLIKELY, float(values[i]) - normaliser)) for i in (token, *ids)]
    return TokenLogprob(*shares[0], tuple(shares[1:]))
