"""What steps came to: counters, the events of each sequence, a record for those who watch, lines for the debug log."""

from collections.abc import Callable, Iterator

from engine.bundle.variant import StepShape
from engine.core.plan import Gauges, Planner, SequenceUpdate, StepPlan, StepResult
from engine.core.sequence import Sequence
from engine.core.speculation import GuessKind
from engine.messages import Counters, StepRecord, StepSegment
from engine.request import FinishReason, GuessCounts, RequestTimings, TokenEvent


class StepBook:
    """Counts steps and writes down what they were. `clock` returns seconds, monotonic."""

    def __init__(self, clock: Callable[[], float], device: str = "") -> None:
        self.counters = Counters()  # of steps, rows, tokens and times; the others are the planner's
        self.longest_ms = 0.0
        self._clock, self._device = clock, device
        self._last_shape: StepShape | None = None
        self.is_watched = False  # whether a record is made of each step

    def count(self, plan: StepPlan, run_s: float) -> None:
        """A step has run, so long inside the graphs."""
        counters = self.counters
        counters.steps += 1
        counters.rows_used += plan.rows_used
        counters.rows_run += plan.shape.rows
        prefill = sum(len(segment.tokens) for segment in plan.segments if not segment.is_decode)
        counters.prefill_rows += prefill
        counters.decode_rows += plan.rows_used - prefill
        counters.variant_switches += self._last_shape not in (None, plan.shape)
        counters.run_s += run_s
        self.longest_ms = max(self.longest_ms, 1000.0 * run_s)
        self._last_shape = plan.shape

    def events(self, updates: list[SequenceUpdate], result: StepResult, now_s: float) -> tuple[TokenEvent, ...]:
        """One for each sequence with new tokens or an end."""
        told = (update for update in updates if update.new_tokens or update.sequence.finish is not None)
        return tuple(self._event(update, result, now_s) for update in told)

    def record(
        self, plan: StepPlan, updates: list[SequenceUpdate], gauges: Gauges, began_s: float, run_s: float
    ) -> StepRecord | None:
        """The record of a committed step, None while nobody watches. A sequence that it lost is left out."""
        if not self.is_watched:
            return None
        number, shape, segments = int(self.counters.steps), plan.shape, tuple(map(_segment, updates))
        at, run, took = (round(1000.0 * seconds, 3) for seconds in (began_s, run_s, self._clock() - began_s))
        return StepRecord(number, at, run, took, shape.rows, shape.context, segments, **gauges._asdict())

    def _event(self, update: SequenceUpdate, result: StepResult, now_s: float) -> TokenEvent:
        sequence = update.sequence
        is_first = sequence.first_token_s is None
        if is_first:
            sequence.first_token_s = now_s
            self.counters.prompt_tokens += 0 if sequence.resumed else sequence.prompt_tokens
        self.counters.generated_tokens += len(update.new_tokens)
        self.counters.finished += sequence.finish is not None
        timings = _timings(sequence, now_s) if is_first or sequence.finish is not None else None
        return TokenEvent(
            sequence.id,
            update.new_tokens,
            update.logprobs or result.logprobs.get(sequence.id, ())[: len(update.new_tokens)],
            sequence.finish,
            stopped_by=update.new_tokens[-1] if sequence.finish is FinishReason.STOP else None,
            timings=timings if sequence.finish is not None else None,
            cached_tokens=sequence.cached_tokens,
            device=self._device if is_first else "",
            queue_ms=timings.queue_ms if timings is not None and is_first else 0.0,
            prompt_logprobs=tuple(sequence.prompt_logprobs) if is_first else (),
            guesses=_guesses(update) if update.drafted else None,
            vector=result.vectors.get(sequence.id, b""),
        )


def mark_started(plan: StepPlan, now_s: float) -> None:
    """Note when sequences had their first rows."""
    for segment in plan.segments:
        if segment.sequence.started_s is None:
            segment.sequence.started_s = now_s


def trace(plan: StepPlan, updates: list[SequenceUpdate], number: float, planner: Planner) -> Iterator[str]:
    """One line for the step, one for each sequence in it, one more for each that ended. Ids and no text."""
    limit = planner.capacity.tokens_per_sequence
    yield f"step {number}: {plan.shape}, {plan.rows_used} of {plan.shape.rows} rows used"
    for update in updates:
        sequence, segment = update.sequence, update.segment
        yield (
            f"{_kind(update)} {sequence.id}: rows {len(segment.tokens)} at position {segment.first_position}, "
            f"last input {segment.tokens[-1]}, output {list(update.new_tokens)}, length {len(sequence.tokens)}, "
            f"cached {sequence.computed}"
        )
        if sequence.finish is not None:
            yield (
                f"end {sequence.id}: {sequence.finish}, {sequence.generated} generated, "
                f"length {len(sequence.tokens)}, room for {limit - len(sequence.tokens)} more"
            )


def _kind(update: SequenceUpdate) -> str:
    segment = update.segment
    return "denoise" if segment.masked else "decode" if segment.is_decode else "prefill"


def _segment(update: SequenceUpdate) -> StepSegment:
    kind, rows, new = _kind(update), len(update.segment.tokens), len(update.new_tokens)
    guesses = len(update.segment.guesses) if kind == "decode" else 0
    return StepSegment(update.sequence.order, kind, rows, guesses, update.accepted, new)


def _guesses(update: SequenceUpdate) -> GuessCounts:
    counts, is_predicted = (update.drafted, update.accepted), update.sequence.guesses.taken is GuessKind.PREDICTION
    return GuessCounts(*counts, *(counts if is_predicted else ()))


def _timings(sequence: Sequence, now_s: float) -> RequestTimings:
    started = sequence.arrived_s if sequence.started_s is None else sequence.started_s
    first = now_s if sequence.first_token_s is None else sequence.first_token_s
    return RequestTimings(
        queue_ms=1000 * (started - sequence.arrived_s),
        prompt_ms=1000 * (first - started),
        generate_ms=1000 * (now_s - first),
        prompt_tokens=sequence.prompt_tokens,
        cached_tokens=sequence.cached_tokens,
        generated_tokens=sequence.generated,
        drafted_tokens=sequence.drafted,
        accepted_tokens=sequence.accepted,
        preemptions=sequence.preemptions,
        steps=sequence.steps,
        step_rows=sequence.step_rows,
    )
