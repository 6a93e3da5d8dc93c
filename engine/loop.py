"""One step of the engine: plan, pack, run, sample, commit. The only effects are `run` and `keep`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.config import PAGE_COLUMNS
from engine.errors import PassFailed
from engine.graphs.batch import PackedBatch, pack
from engine.graphs.runtime import Runtime
from engine.messages import Failed, Stats
from engine.plan import MoveKind, Segment, StepPlan
from engine.request import RequestKpi, TokenEvent, TokenLogprob
from engine.sampler import BadLogits, Pick, RowContext, sample
from engine.scheduling.scheduler import Advance, Scheduler
from engine.scoring import take_scores
from engine.sequence import Sequence
from engine.trace import trace

log = logging.getLogger("hexserve.worker")


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step came to: events of the sequences it moved, and the ones it lost."""

    events: tuple[TokenEvent, ...]
    failures: tuple[Failed, ...] = ()


@dataclass(slots=True)
class _Totals:
    """Counters since the start; only `EngineLoop` writes them."""

    passes: int = 0
    rows_used: int = 0
    rows_run: int = 0
    decode_rows: int = 0
    prefill_rows: int = 0
    variant_switches: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    run_s: float = 0.0
    step_s: float = 0.0


class EngineLoop:
    """Binds a scheduler to a runtime. `clock` returns seconds, monotonic."""

    def __init__(self, scheduler: Scheduler, runtime: Runtime, clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.runtime = runtime
        self._clock = clock
        self._totals = _Totals()
        self._last_shape: object = None

    def step(self) -> StepReport:
        """Run one pass; an empty report when there is nothing to run."""
        began = self._clock()
        plan = self.scheduler.plan()
        if plan is None:
            return StepReport(())
        batch = pack(plan, PAGE_COLUMNS)
        self._mark_started(plan, began)
        entered = self._clock()
        self._move_pages(plan)
        try:
            logits = self.runtime.run(batch)
        except PassFailed as error:
            lost = self.scheduler.fail(plan)
            return StepReport((), tuple(Failed(s.request.request_id, str(error)) for s in lost))
        left = self._clock()
        self.scheduler.costs.observe(plan.shape, 1000.0 * (left - entered))
        picks, failures = self._sample(plan, logits)
        failures += self._drop_damaged(plan, batch)
        tokens = {name: tuple(pick.token_id for pick in chosen) for name, chosen in picks.items()}
        advances = self.scheduler.commit(plan, tokens)
        self._keep(plan, batch, advances)
        self._count(plan, left - entered)
        if log.isEnabledFor(logging.DEBUG):
            for line in trace(plan, advances, self._totals.passes, self.scheduler.rules.capacity.tokens_per_sequence):
                log.debug("%s", line)
        report = StepReport(tuple(self._events(advances, picks, left)), failures)
        self._totals.step_s += self._clock() - began
        return report

    def stats(self) -> Stats:
        """Counters and gauges of now."""
        totals, counters, pools = self._totals, self.scheduler.counters, self.scheduler.pools
        return Stats(
            **{name: getattr(totals, name) for name in _Totals.__slots__},
            drafted_rows=counters.drafted_rows,
            accepted_rows=counters.accepted_rows,
            restrides=self.runtime.restrides,
            preemptions=counters.preemptions,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            running=self.scheduler.running,
            waiting=self.scheduler.waiting,
            columns_used=sum(pool.referenced * pool.page_columns for pool in pools),
            columns_total=sum(pool.page_count * pool.page_columns for pool in pools),
        )

    def _sample(self, plan: StepPlan, logits: np.ndarray) -> tuple[dict[str, tuple[Pick, ...]], tuple[Failed, ...]]:
        """Choose tokens for every logit row; a sequence with a bad row is dropped here, its neighbours are not."""
        logits, unscorable = take_scores(plan, logits, self.scheduler.find)
        rows = [row for segment in plan.segments for row in self._contexts(segment)]
        chosen = sample(logits, rows)
        picks: dict[str, tuple[Pick, ...]] = {}
        failures = []
        place = 0
        for segment in plan.segments:
            mine = chosen[place : place + segment.chosen_rows]
            place += segment.chosen_rows
            bad = unscorable.get(segment.sequence_id)
            bad = bad or next((pick for pick in mine if isinstance(pick, BadLogits)), None)
            if bad is not None:
                self.scheduler.abort(segment.sequence_id)
                failures.append(Failed(segment.sequence_id, str(bad)))
            elif mine:
                picks[segment.sequence_id] = tuple(pick for pick in mine if isinstance(pick, Pick))
        return picks, tuple(failures)

    def _drop_damaged(self, plan: StepPlan, batch: PackedBatch) -> tuple[Failed, ...]:
        """Sequences whose new keys or values are not finite end here, before they reach the pool."""
        first = batch.shape.rows - plan.rows_used
        damaged = set(self.runtime.damaged_rows(np.arange(first, batch.shape.rows)).tolist())
        failures = []
        for segment, start in zip(plan.segments, batch.starts, strict=True):
            hurt = damaged & set(range(start, start + len(segment.tokens)))
            if hurt and self.scheduler.abort(segment.sequence_id) is not None:
                failures.append(Failed(segment.sequence_id, "the graph returned keys or values that are not finite"))
        return tuple(failures)

    def _contexts(self, segment: Segment) -> list[RowContext]:
        """What the sampler must know for each logit row; later rows take the guesses before them as generated."""
        sequence = self.scheduler.find(segment.sequence_id)
        assert sequence is not None
        prompt, completion = sequence.request.prompt_ids, sequence.tokens[sequence.prompt_tokens :]
        guesses = segment.tokens[len(segment.tokens) - segment.chosen_rows + 1 :] if segment.chosen_rows else ()
        return [
            RowContext(sequence.request.params, sequence.seed, prompt, [*completion, *guesses[:index]])
            for index in range(segment.chosen_rows)
        ]

    def _keep(self, plan: StepPlan, batch: PackedBatch, advances: list[Advance]) -> None:
        """Write the kept rows of all sequences in one go."""
        start_of = {segment.sequence_id: start for segment, start in zip(plan.segments, batch.starts, strict=True)}
        rows: list[int] = []
        columns: list[int] = []
        for advance in advances:
            start = start_of[advance.sequence.request.request_id]
            rows.extend(range(start, start + advance.kept_rows))
            columns.extend(advance.targets)
        if rows:
            self.runtime.keep(plan.pool, np.array(rows, np.int64), np.array(columns, np.int64))

    def _move_pages(self, plan: StepPlan) -> None:
        """To the shelf and back, before the pass re-lays or reads anything."""
        for move in plan.moves:
            if move.kind is MoveKind.STOW:
                self.runtime.stow(move.pool, _columns(move.page), move.key)
            elif move.kind is MoveKind.RESTORE:
                self.runtime.restore(move.pool, _columns(move.page), move.key)
            else:
                self.runtime.drop(move.key)

    def _mark_started(self, plan: StepPlan, now_s: float) -> None:
        for segment in plan.segments:
            sequence = self.scheduler.find(segment.sequence_id)
            if sequence is not None and sequence.started_s is None:
                sequence.started_s = now_s

    def _count(self, plan: StepPlan, run_s: float) -> None:
        totals = self._totals
        totals.passes += 1
        totals.rows_used += plan.rows_used
        totals.rows_run += plan.shape.rows
        prefill = sum(len(s.tokens) for s in plan.segments if not s.chosen_rows or len(s.tokens) > s.chosen_rows)
        totals.prefill_rows += prefill
        totals.decode_rows += plan.rows_used - prefill
        totals.variant_switches += self._last_shape not in (None, plan.shape)
        totals.run_s += run_s
        self._last_shape = plan.shape

    def _events(self, advances: list[Advance], picks: dict[str, tuple[Pick, ...]], now_s: float) -> list[TokenEvent]:
        events = []
        for advance in advances:
            sequence = advance.sequence
            if not advance.new_tokens and sequence.finish is None:
                continue
            is_first = sequence.first_token_s is None
            if is_first:
                sequence.first_token_s = now_s
                self._totals.prompt_tokens += 0 if sequence.resumed else sequence.prompt_tokens
            self._totals.generated_tokens += len(advance.new_tokens)
            self._totals.finished += sequence.finish is not None
            chosen = picks[sequence.request.request_id][: len(advance.new_tokens)]
            events.append(_event(advance, chosen, now_s, tuple(sequence.prompt_scores) if is_first else ()))
        return events


def _columns(page: int) -> slice:
    return slice(page * PAGE_COLUMNS, (page + 1) * PAGE_COLUMNS)


def _event(
    advance: Advance, chosen: tuple[Pick, ...], now_s: float, prompt_logprobs: tuple[TokenLogprob, ...]
) -> TokenEvent:
    sequence = advance.sequence
    logprobs: tuple[TokenLogprob, ...] = tuple(pick.logprob for pick in chosen if pick.logprob is not None)
    stopped = advance.new_tokens[-1] if sequence.finish == "stop" else None
    kpi = _kpi(sequence, now_s) if sequence.finish is not None else None
    return TokenEvent(
        sequence.request.request_id,
        advance.new_tokens,
        logprobs,
        sequence.finish,
        stopped,
        kpi,
        sequence.cached_tokens,
        prompt_logprobs,
    )


def _kpi(sequence: Sequence, now_s: float) -> RequestKpi:
    started = sequence.arrived_s if sequence.started_s is None else sequence.started_s
    first = now_s if sequence.first_token_s is None else sequence.first_token_s
    return RequestKpi(
        queue_ms=1000 * (started - sequence.arrived_s),
        prompt_ms=1000 * (first - started),
        generate_ms=1000 * (now_s - first),
        prompt_tokens=sequence.prompt_tokens,
        cached_tokens=sequence.cached_tokens,
        generated_tokens=sequence.generated,
        drafted_tokens=sequence.drafted,
        accepted_tokens=sequence.accepted,
        preemptions=sequence.preemptions,
        passes=sequence.passes,
        pass_rows=sequence.pass_rows,
    )
