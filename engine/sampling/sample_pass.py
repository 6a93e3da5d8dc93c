"""From a pass's logits to tokens for its sequences: prompt log-probabilities, masks, sampling, failures."""

from dataclasses import dataclass, field

from engine.grammar.masks import Forbidden, GrammarMasks
from engine.grammar.matching import GrammarFailed
from engine.graphs.logits import Logits
from engine.modes.forecast_tree import TreeOutcome
from engine.modes.unmasking import Prediction
from engine.request import Pooling
from engine.sampling.denoising import predict
from engine.sampling.pooling import pooled
from engine.sampling.prompt_logprobs import take_prompt_logprobs
from engine.sampling.row_context import RowContext
from engine.sampling.sampler import BadLogits, SampledToken, sample
from engine.sampling.tree_samples import take_tree
from engine.scheduling.plan import Segment, StepPlan

LONE_WAIT_S = 0.05


@dataclass(slots=True)
class PassSamples:
    """By sequence id: the tokens sampled, and why a sequence is lost. deferred: ids of those whose mask was not there.

    predicted: what is said of the masked tokens of the block that a sequence denoises, in the place of sampled tokens.
    A deferred sequence is sampled in a later pass. trees: what came of those that were trees. vectors: of sequences
    that want one instead of a token.
    """

    tokens: dict[str, tuple[SampledToken, ...]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    predicted: dict[str, tuple[Prediction, ...]] = field(default_factory=dict)
    trees: dict[str, TreeOutcome] = field(default_factory=dict)
    vectors: dict[str, bytes] = field(default_factory=dict)

    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """The tokens without their log-probabilities; in place of a vector any token, which max_tokens 0 leaves out."""
        tokens = {sequence_id: tuple(token.token_id for token in found) for sequence_id, found in self.tokens.items()}
        return tokens | dict.fromkeys(self.vectors, (0,))


def sample_pass(plan: StepPlan, logits: Logits, masks: GrammarMasks) -> PassSamples:
    """Note the log-probabilities of prompt tokens and sample a token from each of the other logit rows [R, V].

    Whatever is wrong with one sequence leaves its neighbours alone.
    """
    samples = PassSamples()
    logits, not_finite = take_prompt_logprobs(plan, logits)
    samples.lost |= {sequence_id: str(bad) for sequence_id, bad in not_finite.items()}
    rows: list[RowContext] = []
    places: list[int] = []  # of these rows in the logits
    sampled: list[tuple[Segment, int]] = []
    start = 0
    for segment in plan.segments:
        place, start = start, start + segment.read_rows
        if not segment.sampled_rows:
            continue
        if segment.masked:
            _predict(segment, logits, place, samples)
            continue
        if segment.sequence.request.pooling is not None:
            _pool(segment.sequence.id, segment.sequence.request.pooling, logits, place, samples)
            continue
        forbidden = _masks_of(segment, masks, samples)
        if forbidden is not None and segment.sequence.id not in samples.lost:
            rows += _contexts(segment, forbidden)
            places += range(place, place + segment.sampled_rows)
            sampled.append((segment, place))
    if not rows:
        return samples
    tokens = sample(logits, rows, places)
    start = 0
    for segment, place in sampled:
        end = start + segment.sampled_rows
        _collect(segment.sequence.id, tokens[start:end], samples)
        _prune(segment, logits, place, samples)
        start = end
    return samples


def prepare(plan: StepPlan, masks: GrammarMasks) -> None:
    """Before the pass: have the masks behind guesses computed."""
    for segment in plan.segments:
        if segment.guesses and segment.sequence.id in masks:
            masks.guess(segment.sequence.id, segment.guesses)


def wait_alone(plan: StepPlan, masks: GrammarMasks) -> None:
    """Wait a moment for masks if every sequence of the pass lacks its own: then no other sequence is delayed."""
    if all(
        segment.sampled_rows and segment.sequence.id in masks and not masks.is_ready(segment.sequence.id)
        for segment in plan.segments
    ):
        masks.wait(LONE_WAIT_S)


def _predict(segment: Segment, logits: Logits, start: int, samples: PassSamples) -> None:
    predicted = predict(segment, logits, start)
    if isinstance(predicted, BadLogits):
        samples.lost[segment.sequence.id] = str(predicted)
    else:
        samples.predicted[segment.sequence.id] = predicted


def _pool(sequence_id: str, pooling: Pooling, logits: Logits, place: int, samples: PassSamples) -> None:
    vector = pooled(logits, place, pooling)
    if isinstance(vector, BadLogits):
        samples.lost[sequence_id] = str(vector)
    else:
        samples.vectors[sequence_id] = vector


def _masks_of(segment: Segment, masks: GrammarMasks, samples: PassSamples) -> tuple[Forbidden | None, ...] | None:
    """One mask or None per sampled row; None altogether when the segment is not sampled now."""
    sequence_id = segment.sequence.id
    if sequence_id not in masks:
        return (None,) * segment.sampled_rows
    try:
        found = masks.take(sequence_id)
    except GrammarFailed as error:
        samples.lost[sequence_id] = f"the grammar of this request failed: {error}"
        return None
    if found is None:
        samples.deferred.add(sequence_id)
        return None
    return found[: segment.sampled_rows]


def _contexts(segment: Segment, forbidden: tuple[Forbidden | None, ...]) -> list[RowContext]:
    """What the sampler must know for each sampled row; later rows take the guesses before them as generated."""
    sequence = segment.sequence
    params, completion = sequence.request.params, sequence.tokens[sequence.prompt_tokens :]
    prompt = sequence.distinct_prompt_tokens if params.repetition_penalty != 1.0 else ()
    guesses, tree = segment.guesses, segment.tree
    return [
        RowContext(
            params,
            sequence.seed,
            prompt,
            [*completion, *(guesses[:index] if tree is None else tree.before(index))] if index else completion,
            forbidden[index],
        )
        for index in range(segment.sampled_rows)
    ]


def _prune(segment: Segment, logits: Logits, place: int, samples: PassSamples) -> None:
    """Of a tree, which begins at row `place` of the logits, only the tokens behind accepted nodes count."""
    tokens = samples.tokens.get(segment.sequence.id)
    if segment.tree is not None and tokens is not None:
        taken, samples.trees[segment.sequence.id] = take_tree(segment.tree, tokens, logits, place)
        samples.tokens[segment.sequence.id] = taken


def _collect(sequence_id: str, tokens: list[SampledToken | BadLogits], samples: PassSamples) -> None:
    """Note the tokens of a sequence; a single row without numbers loses all of it."""
    bad = next((token for token in tokens if isinstance(token, BadLogits)), None)
    if bad is not None:
        samples.lost[sequence_id] = str(bad)
    else:
        samples.tokens[sequence_id] = tuple(token for token in tokens if isinstance(token, SampledToken))
