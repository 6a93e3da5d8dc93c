"""From a step's logits to tokens for its sequences: prompt log-probabilities, masks, sampling, failures.
Predicting the masked tokens of a block. Logits of a masked row are about its own place, not about the next.
Order, per row: the mask token gets -infinity, which no later step takes back; logit bias; stop tokens forbidden where
fewer than min_tokens precede; then as in `sampler.py` from step 3 on. The random number depends on the request's seed,
the token's index and the step of its block alone: the same again after a restart, whoever shares the step. Reported
log-probabilities are those of the model without its mask token, before bias."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from engine.core.block_diffusion import Prediction
from engine.core.forecast_tree import ForecastTree, TreeOutcome
from engine.core.plan import Segment, StepPlan, StepResult
from engine.grammar.masks import Forbidden, GrammarFailed, GrammarMasks
from engine.request import Denoising, Pooling, SamplingParams, TokenLogprob
from engine.runtime.interface import FLOAT32, Logits
from engine.sampling.drawing import CodedRow, draw, top_ids
from engine.sampling.sampler import (
    UNLIKELY,
    BadLogits,
    RowContext,
    SampledToken,
    is_greedy,
    logprob_of,
    sample,
    uniform,
)

NO_WEIGHT = np.float32(-1e4)  # exp of it is 0, and 0 times it is no NaN


def predict(segment: Segment, logits: Logits, start: int) -> tuple[Prediction, ...]:
    """What a step says of each masked token of a segment, whose rows [R, V] begin at `start`. BadLogits."""
    sequence, block, found = segment.sequence, segment.sequence.active_block, []
    assert block is not None
    for row, index in enumerate(segment.masked, start):
        place = segment.first_position - sequence.prompt_tokens + index
        number = uniform(sequence.seed, (block.step << 40) + place)
        values = np.array(logits.rows(row, row + 1).decoded()[0])
        prediction = predict_row(values, sequence.request.params, block.settings, place, number)
        if prediction is None:
            raise BadLogits("the graph returned no finite logits for this request")
        found.append(prediction)
    return tuple(found)


def predict_row(
    values: NDArray[np.float32], params: SamplingParams, settings: Denoising, index: int, number: float
) -> Prediction | None:
    """The prediction from logits [V], which are changed; None when they hold no number to choose from.
    index: of the token in the completion. number: at random in [0, 1)."""
    values[settings.mask_token] = -np.inf
    plain = None if params.logprobs is None else Logits.of(values[None].copy())
    for token, bias in params.logit_bias:
        values[token] += bias
    if index < params.min_tokens:
        values[list(params.late_token_ids)] = -np.inf
    best = int(values.argmax())
    if not np.isfinite(values[best]):
        return None
    greedy = is_greedy(params)
    token = best if greedy else draw(CodedRow(values, FLOAT32), params, number)
    confidence, entropy = certainty(values, token, 1.0 if greedy else params.temperature)
    return Prediction(token, confidence, entropy, None if plain is None else logprob_of(plain, token, params))


def certainty(values: NDArray[np.float32], token: int, temperature: float) -> tuple[float, float]:
    """Probability of a token at a temperature, and the entropy of all in nats; `values` [V] may hold -infinity."""
    relative = np.maximum((values - values.max()) / np.float32(temperature), NO_WEIGHT)
    weights = np.exp(relative)
    total = float(weights.sum(dtype=np.float64))
    mean = float((weights * relative).sum(dtype=np.float64)) / total
    return float(weights[token]) / total, float(np.log(total)) - mean


def pooled(outputs: Logits, place: int, pooling: Pooling) -> bytes:
    """Row `place` of the outputs [R, X], or some numbers of it, as float32; BadLogits when one is not finite."""
    row = outputs.rows(place, place + 1).decoded()[0]
    wanted = row[list(pooling.token_ids)] if pooling.token_ids else row
    if not np.isfinite(wanted).all():
        raise BadLogits("the graph returned numbers that are not finite for this request")
    return bytes(wanted.astype("<f4"))


# R = rows, V = vocabulary
ROWS_AT_ONCE = 16  # bounds the scratch memory; a vocabulary is up to 256 thousand wide


def token_logprobs(logits: Logits, tokens: Sequence[int], alternatives: int) -> list[TokenLogprob]:
    """One entry per row of logits [R, V] for the token of that row; BadLogits if a row holds no number."""
    found: list[TokenLogprob] = []
    for start in range(0, len(tokens), ROWS_AT_ONCE):
        rows = logits.rows(start, start + ROWS_AT_ONCE).decoded()
        top = rows.max(axis=1, keepdims=True)
        if not np.isfinite(top).all():
            raise BadLogits("the graph returned no finite logits for this request")
        normalisers = top[:, 0] + np.log(np.exp(rows - top).sum(axis=1, dtype=np.float64))
        for row, token, normaliser in zip(rows, tokens[start:], normalisers.tolist(), strict=False):
            ids = top_ids(row, alternatives).tolist() if alternatives else ()
            top_entries = tuple((i, max(UNLIKELY, float(row[i]) - normaliser)) for i in ids)
            found.append(TokenLogprob(token, max(UNLIKELY, float(row[token]) - normaliser), top_entries))
    return found


def split_prompt_logprobs(plan: StepPlan, logits: Logits, result: StepResult) -> Logits:
    """Note the log-probabilities of a step's prompt tokens. `logits` [R, V]: all logit rows.
    Returns the logits [S, V] of the rows that are sampled."""
    if not any(segment.logprob_tokens for segment in plan.segments):
        return logits
    left = []
    place = 0
    for segment in plan.segments:
        middle, end = place + len(segment.logprob_tokens), place + segment.logit_rows
        if known := segment.logprob_tokens:
            name, wanted = segment.sequence.id, segment.sequence.request.params.prompt_logprobs or 0
            with _loss_noted(name, result):
                result.prompt_logprobs[name] = token_logprobs(logits.rows(place, middle), known, wanted)
        left.append(logits.codes[middle:end])
        place = end
    return Logits(np.concatenate(left), logits.encoding)


def take_tree(
    tree: ForecastTree, tokens: Sequence[SampledToken], logits: Logits, start: int
) -> tuple[tuple[SampledToken, ...], TreeOutcome]:
    """The tokens behind the accepted nodes, and those nodes with the likeliest ids of the forecasts behind the last.
    tokens: one for each node. The tree's rows of the logits [R, V] begin at `start`."""
    path = tree.accepted(lambda node: tokens[node].token_id)
    rows = (logits.codes[start + row] for row in tree.forecast_rows(path[-1]))
    guesses = tuple(tuple(int(token) for token in top_ids(row, tree.candidates)) for row in rows)
    return tuple(tokens[node] for node in path), TreeOutcome(path, guesses)


LONE_WAIT_S = 0.05


def sample_step(plan: StepPlan, logits: Logits, masks: GrammarMasks) -> StepResult:
    """Note the log-probabilities of prompt tokens and sample a token from each of the other logit rows [R, V].
    Whatever is wrong with one sequence leaves its neighbours alone."""
    result = StepResult()
    logits = split_prompt_logprobs(plan, logits, result)
    rows: list[RowContext] = []
    places: list[int] = []  # of these rows in the logits
    sampled: list[tuple[Segment, int]] = []
    start = 0
    for segment in plan.segments:
        place, start = start, start + segment.read_rows
        if not segment.sampled_rows:
            continue
        name, pooling = segment.sequence.id, segment.sequence.request.pooling
        if segment.masked:
            with _loss_noted(name, result):
                result.predicted[name] = predict(segment, logits, place)
            continue
        if pooling is not None:
            with _loss_noted(name, result):
                result.vectors[name], result.tokens[name] = pooled(logits, place, pooling), (0,)
            continue
        forbidden = _masks_of(segment, masks, result)
        if forbidden is not None and name not in result.lost:
            rows += _contexts(segment, forbidden)
            places += range(place, place + segment.sampled_rows)
            sampled.append((segment, place))
    tokens = iter(sample(logits, rows, places) if rows else ())
    for segment, place in sampled:
        _collect(segment, list(islice(tokens, segment.sampled_rows)), logits, place, result)
    return result


def prepare(plan: StepPlan, masks: GrammarMasks) -> None:
    """Before the step: have the masks behind guesses computed."""
    for segment in plan.segments:
        if segment.guesses and segment.sequence.id in masks:
            masks.guess(segment.sequence.id, segment.guesses)


def wait_alone(plan: StepPlan, masks: GrammarMasks) -> None:
    """Wait a moment for masks if every sequence of the step lacks its own: then no other sequence is delayed."""
    if all(
        segment.sampled_rows and segment.sequence.id in masks and not masks.is_ready(segment.sequence.id)
        for segment in plan.segments
    ):
        masks.wait(LONE_WAIT_S)


@contextmanager
def _loss_noted(sequence_id: str, result: StepResult) -> Iterator[None]:
    """Bad logits lose the one sequence that they are of."""
    try:
        yield
    except BadLogits as error:
        result.lost[sequence_id] = str(error)


def _masks_of(segment: Segment, masks: GrammarMasks, result: StepResult) -> tuple[Forbidden | None, ...] | None:
    """One mask or None per sampled row; None altogether when the segment is not sampled now."""
    sequence_id = segment.sequence.id
    if sequence_id not in masks:
        return (None,) * segment.sampled_rows
    try:
        found = masks.take(sequence_id)
    except GrammarFailed as error:
        result.lost[sequence_id] = f"the grammar of this request failed: {error}"
        return None
    if found is None:
        result.deferred.add(sequence_id)
        return None
    return found[: segment.sampled_rows]


def _contexts(segment: Segment, forbidden: tuple[Forbidden | None, ...]) -> list[RowContext]:
    """What the sampler must know for each sampled row; later rows take the guesses before them as generated."""
    sequence = segment.sequence
    params, completion = sequence.request.params, sequence.tokens[sequence.prompt_tokens :]
    prompt = sequence.distinct_prompt_tokens if params.repetition_penalty != 1.0 else ()
    guesses, tree = segment.guesses, segment.tree
    contexts = [RowContext(params, sequence.seed, prompt, completion, forbidden[0])]
    for index in range(1, segment.sampled_rows):
        before = [*completion, *(guesses[:index] if tree is None else tree.before(index))]
        contexts.append(RowContext(params, sequence.seed, prompt, before, forbidden[index]))
    return contexts


def _collect(
    segment: Segment, tokens: Sequence[SampledToken | BadLogits], logits: Logits, place: int, result: StepResult
) -> None:
    """Note the tokens of a sequence, whose rows begin at `place`. A single row without numbers loses all of it."""
    sequence_id, found = segment.sequence.id, tuple(token for token in tokens if isinstance(token, SampledToken))
    if bad := next((token for token in tokens if isinstance(token, BadLogits)), None):
        result.lost[sequence_id] = str(bad)
        return
    if segment.tree is not None:
        found, result.trees[sequence_id] = take_tree(segment.tree, found, logits, place)
    result.tokens[sequence_id] = tuple(token.token_id for token in found)
    result.logprobs[sequence_id] = tuple(token.logprob for token in found if token.logprob is not None)
