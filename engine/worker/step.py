"""One step of the engine: schedule, run, accept, commit. The only effects are the runtime's."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.adapters.named import AdapterSalts
from engine.core.plan import Planner, SequenceUpdate, StepPlan, StepResult
from engine.core.speculation import NO_PROPOSALS, Drafter
from engine.errors import StepFailed
from engine.grammar.masks import GrammarMasks
from engine.messages import Counters, Failed, Stats, StepRecord, summed
from engine.request import Request, TokenEvent
from engine.runtime.interface import Indices, Logits, PackedBatch, Runtime, StageClock, pack
from engine.sampling.sample_step import prepare, sample_step, wait_alone
from engine.worker.images import ImageQueue
from engine.worker.records import StepBook, mark_started, trace

log = logging.getLogger("hexserve.worker")

NO_ADAPTERS = AdapterSalts({})
IDLE_WAIT_S = 0.002  # for masks, when nothing else can run; a new request waits no longer than this


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of a step: events of sequences with new tokens or an end, and the sequences that failed.
    record: what the step was, while somebody watches. has_run: whether graphs ran, be it for a prompt alone."""

    events: tuple[TokenEvent, ...]
    failures: tuple[Failed, ...] = ()
    record: StepRecord | None = None
    has_run: bool = False


class EngineLoop:
    """Binds a planner to a runtime. One thread; `clock` returns seconds, monotonic.
    masks, drafter: become the loop's own. salts: of the adapters there are."""

    def __init__(
        self,
        scheduler: Planner,
        runtime: Runtime,
        clock: Callable[[], float],
        masks: GrammarMasks,
        salts: AdapterSalts = NO_ADAPTERS,
        drafter: Drafter | None = None,
        images: ImageQueue | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.runtime = runtime
        self.stages = StageClock()
        self._clock = clock
        self._masks = masks
        self._salts = salts
        self._drafter = drafter or Drafter()
        self._images = images
        self._encoded = -1  # images, when it was last told that nothing else is done; -1 = since a step
        self._book = StepBook(clock, runtime.device)

    @property
    def has_work(self) -> bool:
        """Whether a sequence waits or runs, or waits for its images."""
        return self.scheduler.has_work or (self._images is not None and self._images.has_waiting)

    def watch(self, is_on: bool) -> None:
        self._book.is_watched = is_on

    def violations(self) -> tuple[str, ...]:
        return tuple(self.scheduler.violations())

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> None:
        """Queue a request; `emitted` are tokens of an earlier worker. ValueError when it can never run.
        One with images is queued once all of them are encoded, beside the steps of others."""
        if self._images is None and request.images:
            raise ValueError("this bundle reads no images")
        if self._images is not None and request.images and not request.images[0].features:
            self._images.add(request, partial(self.add, emitted=emitted, seed=seed, now_s=now_s))
            return
        self.scheduler.add(self._salts.salted(request), emitted, seed, now_s)
        if request.params.grammar is not None:
            self._masks.open(request.id, request.params.grammar, emitted)

    def abort(self, sequence_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        if self._images is not None:
            self._images.forget(sequence_id)
        self.scheduler.abort(sequence_id)
        self._masks.forget(sequence_id)
        self._free()

    def step(
        self, begin: Callable[[float], None] = lambda _: None, started: Callable[[], None] = lambda: None
    ) -> StepReport:
        """Run one step; an empty report when there is nothing to run, or nothing but sequences without a mask.
        `begin` is told the milliseconds that the step should take, 0 = not known, as of an image that is waited for
        alone. `started` is called when the host has nothing left to decide: right before the graphs run, or before it
        waits because none can run."""
        began = self._clock()
        self.stages.begin()
        unread = self._admit_images()
        plan = self.scheduler.plan(self._masks.late(), self._proposals())
        if plan is None:
            started()
            self._rest(begin)
            return StepReport((), unread)
        self._encoded = -1
        costs = self.scheduler.costs
        begin(costs.milliseconds(plan.shape) if costs.is_measured else self._book.longest_ms)
        self.stages.mark("plan")
        batch = pack(plan, self.scheduler.block_size)
        mark_started(plan, began)
        prepare(plan, self._masks)
        started()
        self.stages.mark("pack")
        try:
            logits, entered, left = self._run(plan, batch)
        except StepFailed as error:
            return self._lost(plan, str(error), unread)
        failures, result = self._accept(plan, batch, logits)
        updates = self._commit(plan, batch, result)
        return self._report(plan, updates, result, (*unread, *failures), (began, entered, left))

    def _rest(self, begin: Callable[[float], None]) -> None:
        """Wait a moment for an image or a mask. Each image, and all masks, may take as long as a step."""
        images = self._images
        encoded = images.encoded if images is not None and images.has_waiting else 0
        if encoded != self._encoded:
            self._encoded = encoded
            begin(0.0)
        if images is None or not images.wait(IDLE_WAIT_S):
            self._masks.wait(IDLE_WAIT_S)

    def _admit_images(self) -> tuple[Failed, ...]:
        """Queue the requests whose images are encoded by now; those that cannot run are told of."""
        if self._images is None or not self._images.has_waiting:
            return ()
        ready, failures = self._images.take_ready()
        for request, add in ready:
            try:
                add(request)
            except ValueError as error:
                failures.append(Failed(request.id, str(error), "invalid"))
        return tuple(failures)

    def _proposals(self) -> Mapping[str, tuple[int, ...]]:
        """Let the draft model guess what comes next, where that pays."""
        if not self._drafter.most:
            return NO_PROPOSALS
        began = self._clock()
        self._drafter.retain(frozenset(sequence.id for sequence in self.scheduler.sequences()))
        requests = self.scheduler.draft_requests(self._drafter, self._masks.late())
        proposals = self._drafter.propose(requests) if requests else NO_PROPOSALS
        self._book.counters.draft_s += self._clock() - began
        self.stages.mark("draft")
        return proposals

    def _run(self, plan: StepPlan, batch: PackedBatch) -> tuple[Logits, float, float]:
        """The logits, and when graphs were entered and left. Blocks move before the pool loses columns. StepFailed."""
        began = self._clock()
        self.runtime.blocks.move(plan.moves)
        self._free()  # so that what the step is about to write has room
        moved = self._clock()
        self.runtime.lay_out(plan.shape)
        entered = self._clock()
        self._book.counters.copy_s += moved - began
        self._book.counters.relayout_s += entered - moved
        self.stages.mark("blocks")
        logits = self.runtime.run(batch)
        left = self._clock()
        self.stages.mark("graph")
        self.scheduler.costs.observe(plan.shape, 1000.0 * (left - entered))
        return logits, entered, left

    def _accept(self, plan: StepPlan, batch: PackedBatch, logits: Logits) -> tuple[tuple[Failed, ...], StepResult]:
        """Sample, and end the sequences of which something is not finite: none of theirs may reach the pool."""
        first = batch.shape.rows - plan.rows_used
        spoiled = frozenset(self.runtime.non_finite_rows(np.arange(first, batch.shape.rows)).tolist())
        wait_alone(plan, self._masks)
        result = sample_step(plan, logits, self._masks)
        self.stages.mark("sample")
        failures = []
        for segment, packed in zip(plan.segments, batch.segments, strict=True):
            reason = result.lost.get(segment.sequence.id)
            if reason is None and not spoiled.isdisjoint(range(packed.start, packed.end)):
                reason = "the graph returned keys or values that are not finite"
            if reason is not None:
                self.scheduler.drop(segment.sequence)
                failures.append(Failed(segment.sequence.id, reason))
        return tuple(failures), result

    def _commit(self, plan: StepPlan, batch: PackedBatch, result: StepResult) -> list[SequenceUpdate]:
        """Have the tokens taken in and the keys and values of accepted rows written; begin the next masks."""
        updates = self.scheduler.commit(plan, result)
        self._advance_masks(plan, updates)
        self.stages.mark("commit")
        rows, slots = _kept(plan, batch, updates)
        if len(rows):
            self.runtime.keep(rows, slots)
        self._free()
        self.stages.mark("keep")
        return updates

    def _report(
        self,
        plan: StepPlan,
        updates: list[SequenceUpdate],
        result: StepResult,
        failures: tuple[Failed, ...],
        times_s: tuple[float, float, float],
    ) -> StepReport:
        began, entered, left = times_s
        book = self._book
        book.count(plan, left - entered)
        if log.isEnabledFor(logging.DEBUG):
            for line in trace(plan, updates, book.counters.steps, self.scheduler):
                log.debug("%s", line)
        events = book.events(updates, result, left)
        record = book.record(plan, updates, self.scheduler.gauges(), began, left - entered)
        book.counters.step_s += self._clock() - began
        self.stages.mark("events")
        return StepReport(events, failures, record, has_run=True)

    def _lost(self, plan: StepPlan, reason: str, unread: tuple[Failed, ...]) -> StepReport:
        lost = self.scheduler.fail(plan)
        self._advance_masks(plan, [])
        self._free()
        return StepReport((), (*unread, *(Failed(sequence.id, reason) for sequence in lost)))

    def _advance_masks(self, plan: StepPlan, updates: list[SequenceUpdate]) -> None:
        """Start computing the next masks; forget the masks of sequences that have ended."""
        for update in updates:
            if update.new_tokens and update.sequence.id in self._masks and not update.sequence.is_finished:
                self._masks.advance(update.sequence.id, update.new_tokens)
        for segment in plan.segments:
            if segment.sequence.is_finished:
                self._masks.forget(segment.sequence.id)

    def _free(self) -> None:
        freed = self.scheduler.take_freed()
        if freed.sequences or freed.snapshots:
            self.runtime.forget_states(freed.sequences, freed.snapshots)
        self.runtime.blocks.free(freed.blocks)
        self.runtime.blocks.free_behind(freed.behind)

    def stats(self) -> Stats:
        chosen, read = self.runtime.experts
        of_runtime = Counters(relayouts=self.runtime.relayouts, experts_chosen=chosen, experts_read=read)
        counters = summed(self._book.counters, self.scheduler.counters, of_runtime)
        parts = {f"graph: {name}": seconds for name, seconds in self.runtime.part_seconds.items()}
        return Stats(**counters, **self.scheduler.gauges()._asdict(), stages={**self.stages.seconds, **parts})

    def close(self) -> None:
        self._drafter.close()
        self._masks.close()
        if self._images is not None:
            self._images.close()


def _kept(plan: StepPlan, batch: PackedBatch, updates: list[SequenceUpdate]) -> tuple[Indices, Indices]:
    """Rows [M] of the step that are kept, and the KV slots [M] they go to. Of a tree the accepted nodes are kept."""
    starts = {segment.sequence.id: start for segment, start in zip(plan.segments, batch.starts, strict=True)}
    rows, slots = list[int](), list[int]()
    for update in updates:
        start, path = starts[update.sequence.id], update.path or range(update.kept_rows)
        rows.extend(start + row for row in path[: update.kept_rows])
        slots.extend(update.segment.targets[: update.kept_rows])
    return np.array(rows, np.int64), np.array(slots, np.int64)
