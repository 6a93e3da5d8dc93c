"""From a pass's logits to tokens for its sequences: scores, masks, sampling, and who has to wait or is lost."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine.grammar.masks import Forbidden, GrammarMasks
from engine.grammar.matching import GrammarFailed
from engine.sampling.prompt_logprobs import take_scores
from engine.sampling.sampler import BadLogits, RowContext, SampledToken, sample
from engine.scheduling.plan import Segment, StepPlan
from engine.scheduling.sequence import Sequence

LONE_WAIT_S = 0.05

Find = Callable[[str], Sequence | None]


@dataclass(slots=True)
class PassSamples:
    """Tokens by sequence; why a sequence is lost; sequences whose mask was not there, to be sampled another time."""

    picks: dict[str, tuple[SampledToken, ...]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)


def choose(plan: StepPlan, logits: np.ndarray, find: Find, masks: GrammarMasks | None) -> PassSamples:
    """Note prompt scores and choose tokens for the other logit rows [R, V].

    Whatever is wrong with one sequence leaves its neighbours alone.
    """
    chosen = PassSamples()
    logits, unscorable = take_scores(plan, logits, find)
    chosen.lost |= {name: str(bad) for name, bad in unscorable.items()}
    rows: list[RowContext] = []
    places: list[int] = []  # of these rows in the logits
    taken: list[Segment] = []
    start = 0
    for segment in plan.segments:
        place, start = start, start + segment.chosen_rows
        forbidden = _masks_of(segment, masks, chosen)
        if forbidden is not None and segment.chosen_rows and segment.sequence_id not in chosen.lost:
            rows += _contexts(segment, find, forbidden)
            places += range(place, start)
            taken.append(segment)
    if not rows:
        return chosen
    picks = sample(logits if len(rows) == len(logits) else logits[places], rows)
    start = 0
    for segment in taken:
        mine = picks[start : start + segment.chosen_rows]
        start += segment.chosen_rows
        _collect(segment.sequence_id, mine, chosen)
    return chosen


def prepare(plan: StepPlan, masks: GrammarMasks) -> None:
    """Before the pass: ask for the masks behind guesses."""
    names = set(masks.names)
    for segment in plan.segments:
        if segment.chosen_rows > 1 and segment.sequence_id in names:
            masks.guess(segment.sequence_id, _guesses(segment))


def wait_alone(plan: StepPlan, masks: GrammarMasks) -> None:
    """Wait for a mask for a moment if every sequence of the pass does: there is no neighbour to keep waiting."""
    names = set(masks.names)
    if all(s.sequence_id in names and s.chosen_rows and not masks.is_ready(s.sequence_id) for s in plan.segments):
        masks.wait(LONE_WAIT_S)


def _masks_of(segment: Segment, masks: GrammarMasks | None, chosen: PassSamples) -> tuple[Forbidden | None, ...] | None:
    """One mask or None per logit row; None altogether when the segment is not sampled now."""
    name = segment.sequence_id
    if masks is None or name not in masks.names or not segment.chosen_rows:
        return (None,) * segment.chosen_rows
    try:
        found = masks.take(name)
    except GrammarFailed as error:
        chosen.lost[name] = f"the grammar of this request failed: {error}"
        return None
    if found is None:
        chosen.deferred.add(name)
        return None
    return found[: segment.chosen_rows]


def _contexts(segment: Segment, find: Find, forbidden: tuple[Forbidden | None, ...]) -> list[RowContext]:
    """What the sampler must know for each logit row; later rows take the guesses before them as generated."""
    sequence = find(segment.sequence_id)
    assert sequence is not None
    params, completion = sequence.request.params, sequence.tokens[sequence.prompt_tokens :]
    prompt = sequence.prompt_kinds if params.repetition_penalty != 1.0 else ()
    guesses = _guesses(segment)
    return [
        RowContext(params, sequence.seed, prompt, [*completion, *guesses[:index]], forbidden[index])
        for index in range(segment.chosen_rows)
    ]


def _guesses(segment: Segment) -> tuple[int, ...]:
    return segment.tokens[len(segment.tokens) - segment.chosen_rows + 1 :]


def _collect(name: str, mine: list[SampledToken | BadLogits], chosen: PassSamples) -> None:
    bad = next((pick for pick in mine if isinstance(pick, BadLogits)), None)
    if bad is not None:
        chosen.lost[name] = str(bad)
    else:
        chosen.picks[name] = tuple(pick for pick in mine if isinstance(pick, SampledToken))
