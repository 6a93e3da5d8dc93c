"""Logits to token ids. Order, per row:

0. tokens that the grammar does not allow get -infinity, which no later step takes back
1. logit bias; stop tokens forbidden while fewer than min_tokens were generated, unless the grammar allows no others;
   a spent thinking budget leaves one token
2. repetition penalty (over prompt and completion), then frequency and presence penalties (over the completion)
3. temperature 0 (below 1e-5): the largest logit, lowest id first among equals
4. temperature -> top-k -> softmax -> top-p -> min-p -> draw

Reported log-probabilities are those of the model: log-softmax of the logits before all steps.
Every operation is per row, and the random number depends on (seed, index of the token) alone:
a row gives the same token in any batch, and again after a restart. Rows are sampled as the graph stored them: steps 1
and 2 need real numbers of a row, steps 3 and 4 do not. Shapes: R = rows, V = vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.bundle.encoding import Array
from engine.grammar.masks import Forbidden
from engine.graphs.logits import FLOAT32, Logits
from engine.request import SamplingParams, TokenLogprob
from engine.sampling.adjustments import adjust, has_changes
from engine.sampling.candidates import top_ids
from engine.sampling.drawing import CodedRow, draw
from engine.sampling.row_context import RowContext

UNLIKELY = -9999.0
NEARLY_GREEDY = 1e-5  # dividing by less overflows float32


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The chosen token and, if asked for, its log-probability."""

    token_id: int
    logprob: TokenLogprob | None


class BadLogits(ValueError):
    """A row of logits holds no number to choose from."""


def sample(
    logits: Logits, rows: Sequence[RowContext], places: Sequence[int] | None = None
) -> list[SampledToken | BadLogits]:
    """Choose one token for each of `rows`; a row of NaN gives BadLogits in its place.

    places: which row of the logits [R, V] belongs to each; all of them in order when it is left out.
    No second thread takes rows: the operations of a row are so short that two threads wait for the GIL, not for them.
    """
    if logits.encoding.dtype == "float16":  # which no processor compares or sorts as it is
        logits = Logits.of(logits.decoded())
    return [
        _sample_row(logits, place, row)
        for place, row in zip(range(len(rows)) if places is None else places, rows, strict=True)
    ]


def is_greedy(params: SamplingParams) -> bool:
    """Whether the largest logit is taken."""
    return params.temperature < NEARLY_GREEDY or params.top_k == 1


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the index-th token of a seed: SplitMix64 (Steele, Lea, Flood 2014), top 53 bits."""
    state = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        state = ((state ^ (state >> shift)) * factor) & 0xFFFFFFFFFFFFFFFF
    return (state >> 11) / float(1 << 53)


def _sample_row(logits: Logits, place: int, row: RowContext) -> SampledToken | BadLogits:
    token = _choose(CodedRow(logits.codes[place], logits.encoding), row)
    if token is None:
        return BadLogits("the graph returned no finite logits for this request")
    return SampledToken(token, logprob_of(logits.rows(place, place + 1), token, row.params))


def _choose(coded: CodedRow, row: RowContext) -> int | None:
    """Steps 0 to 4; None when there is no number to choose from."""
    if row.forbidden is None and not has_changes(row):
        return _choose_plain(coded, row)
    if row.forbidden is not None and not has_changes(row):
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
