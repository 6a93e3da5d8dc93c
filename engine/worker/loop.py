"""One step of the engine: plan, pack, run, sample, commit. The only effects are the runtime's."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from engine.adapters.named import AdapterSalts
from engine.bundle.variant import PassShape
from engine.errors import PassFailed
from engine.grammar.masks import GrammarMasks
from engine.graphs.batch import PackedBatch, pack
from engine.graphs.logits import Logits
from engine.graphs.runtime import KeepsStates, Runtime, TimesParts
from engine.graphs.stage_clock import StageClock
from engine.messages import Counters, Failed, PassRecord, Stats, summed
from engine.request import FinishReason, GuessCounts, Request, RequestTimings, TokenEvent, TokenLogprob
from engine.sampling.sample_pass import PassSamples, prepare, sample_pass, wait_alone
from engine.scheduling.invariants import violations
from engine.scheduling.plan import SequenceUpdate, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.speculation.acceptance import GuessKind
from engine.speculation.drafter import NO_PROPOSALS, Drafter, NoDrafter
from engine.worker.kv_restart import carry_out
from engine.worker.kv_writer import KvWriter, certain_rows, harmless_rows
from engine.worker.pass_record import pass_record
from engine.worker.trace import trace
from engine.worker.work_loop import StepReport

log = logging.getLogger("hexserve.worker")

NO_ADAPTERS = AdapterSalts({})
IDLE_WAIT_S = 0.002  # for masks, when nothing else can run; a new request waits no longer than this


class EngineLoop:
    """Binds a scheduler to a runtime. `clock` returns seconds, monotonic; `masks` and `drafter` become the loop's own.

    writes: what writes keys and values beside the loop; given by tests only. salts: of the adapters there are.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runtime: Runtime,
        clock: Callable[[], float],
        masks: GrammarMasks,
        writes: Executor | None = None,
        salts: AdapterSalts = NO_ADAPTERS,
        drafter: Drafter | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runtime = runtime
        self.stages = StageClock()
        self._clock = clock
        self._masks = masks
        self._salts = salts
        self._drafter = drafter or NoDrafter()
        self._writer = KvWriter(runtime, writes)
        self._counters = Counters()  # of passes, rows, tokens and times; the others are the scheduler's
        self._last_shape: PassShape | None = None
        self._longest_ms = 0.0
        self._watched_s: float | None = None  # since when

    def watch(self, is_on: bool) -> None:
        """Say in the report of each pass what it was, or no longer."""
        self._watched_s = self._clock() if is_on else None

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs."""
        return self.scheduler.has_work

    def violations(self) -> tuple[str, ...]:
        """What is broken of the scheduler's invariants."""
        return tuple(violations(self.scheduler))

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> None:
        """Queue a request; `emitted` are tokens of an earlier worker. ValueError when it can never run."""
        self.scheduler.add(self._salts.salted(request), emitted, seed, now_s)
        if request.params.grammar is not None:
            self._masks.open(request.id, request.params.grammar, emitted)

    def abort(self, sequence_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self.scheduler.abort(sequence_id)
        self._masks.forget(sequence_id)
        self._free_pages()

    def checkpoint(self, sequence_id: str) -> int:
        """Where a live sequence stands, for `rewind`: its tokens behind the prompt. ValueError when it is not here."""
        sequence = self.scheduler.find(sequence_id)
        if sequence is None:
            raise ValueError(f"there is no live sequence {sequence_id}")
        return sequence.generated

    def rewind(self, sequence_id: str, checkpoint: int) -> None:
        """Let a live sequence go on from an earlier `checkpoint`, with the tokens that came after it then.

        Between steps. ValueError when it is not here or has not come so far.
        """
        self._writer.wait()
        self.scheduler.rewind(sequence_id, checkpoint)
        # What a draft model has seen of a sequence it never looks at again.
        self._drafter.retain(frozenset(s.id for s in self.scheduler.sequences() if s.id != sequence_id))
        sequence = self.scheduler.find(sequence_id)
        if sequence is not None and sequence.request.params.grammar is not None:
            self._masks.open(sequence_id, sequence.request.params.grammar, sequence.tokens[sequence.prompt_tokens :])
        self._free_pages()

    def step(
        self, begin: Callable[[float], None] = lambda _: None, started: Callable[[], None] = lambda: None
    ) -> StepReport:
        """Run one pass; an empty report when there is nothing to run, or nothing but sequences without a mask.

        `begin` is told the milliseconds that the pass should take, 0 = not known. `started` is called when the host has
        nothing left to decide: right before the pass, or before it waits for masks because none can run.
        """
        began = self._clock()
        self.stages.begin()
        plan = self.scheduler.plan(self._masks.late(), self._proposals())
        if plan is None:
            started()
            self._masks.wait(IDLE_WAIT_S)
            return StepReport(())
        begin(self._expected_ms(plan.shape))
        self.stages.mark("plan")
        batch = pack(plan, self.scheduler.pools[0].page_columns)
        _mark_started(plan, began)
        prepare(plan, self._masks)
        self._writer.wait()
        started()
        self.stages.mark("pack")
        self._prepare_pool(plan)
        self.stages.mark("pages")
        self._writer.announce(plan, batch, harmless_rows(plan))
        entered = self._clock()
        try:
            logits = self.runtime.run(batch)
        except PassFailed as error:
            lost = self.scheduler.fail(plan)
            self._advance_masks(plan, [])
            self._free_pages()
            return StepReport((), tuple(Failed(sequence.id, str(error)) for sequence in lost))
        left = self._clock()
        self.stages.mark("graph")
        self.scheduler.costs.observe(plan.shape, 1000.0 * (left - entered))
        failures, updates, samples = self._take_in(plan, batch, logits)
        self._free_pages()
        self.stages.mark("keep")
        self._count(plan, left - entered)
        if log.isEnabledFor(logging.DEBUG):
            for line in trace(plan, updates, self._counters.passes, self.scheduler.rules.capacity.tokens_per_sequence):
                log.debug("%s", line)
        events = tuple(self._events(updates, samples, left))
        report = StepReport(events, failures, self._record(plan, updates, began, left - entered))
        self._counters.step_s += self._clock() - began
        self.stages.mark("events")
        return report

    def _proposals(self) -> Mapping[str, tuple[int, ...]]:
        """Let the draft model guess what comes next, where that pays."""
        if not self._drafter.most:
            return NO_PROPOSALS
        began = self._clock()
        self._drafter.retain(frozenset(sequence.id for sequence in self.scheduler.sequences()))
        wishes = self.scheduler.draft_wishes(self._drafter, self._masks.late())
        proposals = self._drafter.propose(wishes) if wishes else NO_PROPOSALS
        self._counters.draft_s += self._clock() - began
        self.stages.mark("draft")
        return proposals

    def _take_in(
        self, plan: StepPlan, batch: PackedBatch, logits: Logits
    ) -> tuple[tuple[Failed, ...], list[SequenceUpdate], PassSamples]:
        """Sample and commit what a pass gave; meanwhile the keys and values that are kept in any case are written."""
        first = batch.shape.rows - plan.rows_used
        non_finite = frozenset(self.runtime.non_finite_rows(np.arange(first, batch.shape.rows)).tolist())
        is_beside = not logits.encoding.is_float  # a CPU's pass gives floats, and its cores are busy anyway
        early = certain_rows(plan, self._masks) if is_beside and not non_finite else {}
        self._writer.write(plan, batch, early)
        wait_alone(plan, self._masks)
        samples = sample_pass(plan, logits, self._masks)
        self.stages.mark("sample")
        failures = self._drop_failed(plan, batch, samples.lost, non_finite)
        updates = self.scheduler.commit(plan, samples.token_ids(), samples.deferred, samples.predicted, samples.trees)
        self._advance_masks(plan, updates)
        self.stages.mark("commit")
        kept = {update.sequence.id: update.kept_rows for update in updates}
        paths = {update.sequence.id: update.path for update in updates if update.path}
        if is_beside:
            self._writer.write(plan, batch, kept, early, paths)
        else:
            self._writer.write_now(plan, batch, kept, paths)
        return failures, updates, samples

    def finish_writes(self) -> None:
        """Until what the last pass has computed lies in the pools; raises what went wrong with it."""
        self._writer.wait()

    def close(self) -> None:
        """Let the threads that write and compute masks end."""
        self._writer.close()
        self._drafter.close()
        self._masks.close()

    def stats(self) -> Stats:
        """Counters and gauges of now."""
        scheduler, pools = self.scheduler, self.scheduler.pools
        restrides = Counters(restrides=self.runtime.restrides)
        return Stats(
            **summed(self._counters, scheduler.counters, restrides),
            running=scheduler.running,
            waiting=scheduler.waiting,
            columns_used=sum(pool.referenced * pool.page_columns for pool in pools),
            columns_total=sum(pool.page_count * pool.page_columns for pool in pools),
            stages=self._stage_seconds(),
        )

    def _stage_seconds(self) -> dict[str, float]:
        parts = self.runtime.part_seconds if isinstance(self.runtime, TimesParts) else {}
        return {**self.stages.seconds, **{f"graph: {name}": seconds for name, seconds in parts.items()}}

    def _expected_ms(self, shape: PassShape) -> float:
        costs = self.scheduler.costs
        return costs.milliseconds(shape) if costs.is_measured else self._longest_ms

    def _prepare_pool(self, plan: StepPlan) -> None:
        """Move pages to the host cache and back, before the pool is re-laid: what lies beyond its new width is lost."""
        began = self._clock()
        carry_out(self.runtime, plan.moves)
        moved = self._clock()
        self.runtime.lay_out(plan.pool, plan.shape)
        self._counters.copy_s += moved - began
        self._counters.restride_s += self._clock() - moved

    def _drop_failed(
        self, plan: StepPlan, batch: PackedBatch, lost: Mapping[str, str], non_finite: frozenset[int]
    ) -> tuple[Failed, ...]:
        """End the sequences that sampling lost, or whose new keys or values are not finite: none may reach the pool."""
        failures = []
        for segment, start in zip(plan.segments, batch.starts, strict=True):
            reason = lost.get(segment.sequence.id)
            if reason is None and not non_finite.isdisjoint(range(start, start + len(segment.tokens))):
                reason = "the graph returned keys or values that are not finite"
            if reason is not None:
                self.scheduler.drop(segment.sequence)
                failures.append(Failed(segment.sequence.id, reason))
        return tuple(failures)

    def _advance_masks(self, plan: StepPlan, updates: list[SequenceUpdate]) -> None:
        """Start computing the next masks; forget the masks of sequences that have ended."""
        for update in updates:
            if update.new_tokens and update.sequence.id in self._masks and not update.sequence.is_finished:
                self._masks.advance(update.sequence.id, update.new_tokens)
        for segment in plan.segments:
            if segment.sequence.is_finished:
                self._masks.forget(segment.sequence.id)

    def _free_pages(self) -> None:
        gone = self.scheduler.states.take_forgotten()
        if isinstance(self.runtime, KeepsStates) and (gone.sequences or gone.snapshots):
            self.runtime.forget_states(gone.sequences, gone.snapshots)
        for index, pages in enumerate(self.scheduler.pools):
            emptied = pages.take_emptied()
            if emptied:
                self._writer.wait()  # what is written may lie in them
                self.runtime.free(index, emptied)

    def _count(self, plan: StepPlan, run_s: float) -> None:
        counters = self._counters
        counters.passes += 1
        counters.rows_used += plan.rows_used
        counters.rows_run += plan.shape.rows
        prefill = sum(len(segment.tokens) for segment in plan.segments if not segment.is_decode)
        counters.prefill_rows += prefill
        counters.decode_rows += plan.rows_used - prefill
        counters.variant_switches += self._last_shape not in (None, plan.shape)
        counters.run_s += run_s
        self._longest_ms = max(self._longest_ms, 1000.0 * run_s)
        self._last_shape = plan.shape

    def _record(self, plan: StepPlan, updates: list[SequenceUpdate], began_s: float, run_s: float) -> PassRecord | None:
        if self._watched_s is None:
            return None
        times_ms = (1000.0 * (began_s - self._watched_s), 1000.0 * run_s, 1000.0 * (self._clock() - began_s))
        return pass_record(plan, updates, self.scheduler, self._counters.passes, *times_ms)

    def _events(self, updates: list[SequenceUpdate], samples: PassSamples, now_s: float) -> list[TokenEvent]:
        events = []
        for update in updates:
            sequence = update.sequence
            if not update.new_tokens and sequence.finish is None:
                continue
            is_first = sequence.first_token_s is None
            if is_first:
                sequence.first_token_s = now_s
                self._counters.prompt_tokens += 0 if sequence.resumed else sequence.prompt_tokens
            self._counters.generated_tokens += len(update.new_tokens)
            self._counters.finished += sequence.finish is not None
            tokens = samples.tokens.get(sequence.id, ())[: len(update.new_tokens)]
            logprobs = update.logprobs or tuple(token.logprob for token in tokens if token.logprob is not None)
            event = _event(update, logprobs, now_s, tuple(sequence.prompt_logprobs) if is_first else ())
            vector = samples.vectors.get(sequence.id)
            events.append(event if vector is None else replace(event, vector=vector))
        return events


def _mark_started(plan: StepPlan, now_s: float) -> None:
    for segment in plan.segments:
        if segment.sequence.started_s is None:
            segment.sequence.started_s = now_s


def _event(
    update: SequenceUpdate,
    logprobs: tuple[TokenLogprob, ...],
    now_s: float,
    prompt_logprobs: tuple[TokenLogprob, ...],
) -> TokenEvent:
    sequence = update.sequence
    return TokenEvent(
        sequence.id,
        update.new_tokens,
        logprobs,
        sequence.finish,
        stopped_by=update.new_tokens[-1] if sequence.finish is FinishReason.STOP else None,
        timings=_timings(sequence, now_s) if sequence.finish is not None else None,
        cached_tokens=sequence.cached_tokens,
        prompt_logprobs=prompt_logprobs,
        guesses=_guesses(update) if update.drafted else None,
    )


def _guesses(update: SequenceUpdate) -> GuessCounts:
    if update.sequence.guesses.taken is GuessKind.PREDICTION:
        return GuessCounts(update.drafted, update.accepted, update.drafted, update.accepted)
    return GuessCounts(update.drafted, update.accepted)


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
        passes=sequence.passes,
        pass_rows=sequence.pass_rows,
    )
