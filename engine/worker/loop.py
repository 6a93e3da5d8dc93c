"""One step of the engine: plan, pack, run, sample, commit. The only effects are `run` and `keep`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.config import PAGE_COLUMNS
from engine.errors import PassFailed
from engine.grammar.masks import GrammarMasks
from engine.graphs.batch import PackedBatch, pack
from engine.graphs.runtime import Runtime
from engine.messages import Failed, Stats
from engine.request import Request, RequestTimings, TokenEvent, TokenLogprob
from engine.sampling.sample_pass import choose, prepare, wait_alone
from engine.sampling.sampler import SampledToken
from engine.scheduling.plan import MoveKind, StepPlan
from engine.scheduling.scheduler import Scheduler, SequenceUpdate
from engine.scheduling.sequence import Sequence
from engine.worker.trace import trace

log = logging.getLogger("hexserve.worker")

IDLE_WAIT_S = 0.002  # for masks, when nothing else can run; a new request waits no longer than this


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
    """Binds a scheduler to a runtime. `clock` returns seconds, monotonic; `masks` None = no grammars."""

    def __init__(
        self, scheduler: Scheduler, runtime: Runtime, clock: Callable[[], float], masks: GrammarMasks | None = None
    ) -> None:
        self.scheduler = scheduler
        self.runtime = runtime
        self._clock = clock
        self._masks = masks
        self._totals = _Totals()
        self._last_shape: object = None

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> None:
        """Queue a request; `emitted` are tokens of an earlier worker. ValueError when it can never run."""
        grammar = request.params.grammar
        if grammar is not None and self._masks is None:
            raise ValueError("this engine has no grammars")
        self.scheduler.add(request, emitted, seed, now_s)
        if grammar is not None and self._masks is not None:
            self._masks.open(request.request_id, grammar, emitted)

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self.scheduler.abort(request_id)
        if self._masks is not None:
            self._masks.forget(request_id)

    def step(self) -> StepReport:
        """Run one pass; an empty report when there is nothing to run, or nothing but sequences without a mask."""
        began = self._clock()
        plan = self.scheduler.plan(self._masks.late() if self._masks is not None else ())
        if plan is None:
            if self._masks is not None:
                self._masks.wait(IDLE_WAIT_S)
            return StepReport(())
        batch = pack(plan, PAGE_COLUMNS)
        self._mark_started(plan, began)
        entered = self._clock()
        self._move_pages(plan)
        if self._masks is not None:
            prepare(plan, self._masks)
        try:
            logits = self.runtime.run(batch)
        except PassFailed as error:
            lost = self.scheduler.fail(plan)
            self._tell_masks([])
            return StepReport((), tuple(Failed(s.request.request_id, str(error)) for s in lost))
        left = self._clock()
        self.scheduler.costs.observe(plan.shape, 1000.0 * (left - entered))
        if self._masks is not None:
            wait_alone(plan, self._masks)
        chosen = choose(plan, logits, self.scheduler.find, self._masks)
        failures = self._drop(chosen.lost) + self._drop_damaged(plan, batch)
        tokens = {name: tuple(pick.token_id for pick in picks) for name, picks in chosen.picks.items()}
        advances = self.scheduler.commit(plan, tokens, chosen.deferred)
        self._tell_masks(advances)
        self._keep(plan, batch, advances)
        self._count(plan, left - entered)
        if log.isEnabledFor(logging.DEBUG):
            for line in trace(plan, advances, self._totals.passes, self.scheduler.rules.capacity.tokens_per_sequence):
                log.debug("%s", line)
        report = StepReport(tuple(self._events(advances, chosen.picks, left)), failures)
        self._totals.step_s += self._clock() - began
        return report

    def close(self) -> None:
        """Let the threads that compute masks end."""
        if self._masks is not None:
            self._masks.close()

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

    def _drop(self, lost: dict[str, str]) -> tuple[Failed, ...]:
        for name in lost:
            self.scheduler.abort(name)
        return tuple(Failed(name, reason) for name, reason in lost.items())

    def _drop_damaged(self, plan: StepPlan, batch: PackedBatch) -> tuple[Failed, ...]:
        """Sequences whose new keys or values are not finite end here, before they reach the pool."""
        first = batch.shape.rows - plan.rows_used
        damaged = set(self.runtime.non_finite_rows(np.arange(first, batch.shape.rows)).tolist())
        failures = []
        for segment, start in zip(plan.segments, batch.starts, strict=True):
            hurt = damaged & set(range(start, start + len(segment.tokens)))
            if hurt and self.scheduler.abort(segment.sequence_id) is not None:
                failures.append(Failed(segment.sequence_id, "the graph returned keys or values that are not finite"))
        return tuple(failures)

    def _tell_masks(self, advances: list[SequenceUpdate]) -> None:
        """Let the next masks be computed while everything else goes on; let go of sequences that are gone."""
        if self._masks is None:
            return
        names = set(self._masks.names)
        for advance in advances:
            name = advance.sequence.request.request_id
            if name in names and advance.new_tokens and advance.sequence.finish is None:
                self._masks.advance(name, advance.new_tokens)
        for name in names:
            if self.scheduler.find(name) is None:
                self._masks.forget(name)

    def _keep(self, plan: StepPlan, batch: PackedBatch, advances: list[SequenceUpdate]) -> None:
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
        """To the host cache and back, before the pass re-lays or reads anything."""
        for move in plan.moves:
            if move.kind is MoveKind.OFFLOAD:
                self.runtime.offload(move.pool, _columns(move.page), move.key)
            elif move.kind is MoveKind.LOAD:
                self.runtime.load(move.pool, _columns(move.page), move.key)
            else:
                self.runtime.evict(move.key)

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

    def _events(
        self, advances: list[SequenceUpdate], picks: dict[str, tuple[SampledToken, ...]], now_s: float
    ) -> list[TokenEvent]:
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
    advance: SequenceUpdate, chosen: tuple[SampledToken, ...], now_s: float, prompt_logprobs: tuple[TokenLogprob, ...]
) -> TokenEvent:
    sequence = advance.sequence
    logprobs: tuple[TokenLogprob, ...] = tuple(pick.logprob for pick in chosen if pick.logprob is not None)
    stopped = advance.new_tokens[-1] if sequence.finish == "stop" else None
    timings = _kpi(sequence, now_s) if sequence.finish is not None else None
    return TokenEvent(
        sequence.request.request_id,
        advance.new_tokens,
        logprobs,
        sequence.finish,
        stopped,
        timings,
        sequence.cached_tokens,
        prompt_logprobs,
    )


def _kpi(sequence: Sequence, now_s: float) -> RequestTimings:
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
        passes=sequence.passes,
        pass_rows=sequence.pass_rows,
    )
