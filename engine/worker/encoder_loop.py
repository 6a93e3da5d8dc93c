"""The loop of an encoder: texts in, a pass of as many as fit, a vector or scores of each out. Nothing is kept."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.encoders.batch import EncoderBatch, EncoderText, pack_texts, pair_types
from engine.errors import PassFailed
from engine.graphs.stage_clock import StageClock
from engine.messages import Counters, Failed, PassRecord, PassSegment, Stats, summed
from engine.request import FinishReason, Request, RequestTimings, TokenEvent
from engine.scheduling.text_queue import TextQueue
from engine.worker.work_loop import StepReport

Float32 = NDArray[np.float32]
ReadRows = Callable[[Float32], Float32]  # hidden states [T, H] of one text -> its vector or scores


class Encoder(Protocol):
    """What runs passes. rows: those of its variants, fewest first."""

    rows: tuple[int, ...]

    def run(self, batch: EncoderBatch) -> Float32:
        """Hidden states [N, H] of the batch's rows. PassFailed when it cannot."""


@dataclass(frozen=True, slots=True)
class _WaitingText:
    request: Request
    text: EncoderText
    arrived_s: float
    number: int  # of its arrival


class EncoderLoop:
    """Implements `WorkLoop`. longest: most tokens of a text. `clock` returns seconds, monotonic.

    expected_ms: of a pass by its rows, of those that were timed. middle_ids: between the two texts of a pair, whose
    token types differ; () = there is one type. alone: a pass has one text.
    """

    def __init__(
        self,
        runtime: Encoder,
        read_rows: ReadRows,
        longest: int,
        clock: Callable[[], float],
        expected_ms: Mapping[int, float],
        middle_ids: tuple[int, ...] = (),
        alone: bool = False,
    ) -> None:
        self.stages = StageClock()
        self._runtime = runtime
        self._read_rows = read_rows
        self._longest = longest
        self._middle_ids = middle_ids
        self._clock = clock
        self._expected_ms = dict(expected_ms)
        self._queue = TextQueue(runtime.rows, alone)
        self._waiting: dict[str, _WaitingText] = {}
        self._counters = Counters()
        self._last_rows = 0
        self._arrived = 0
        self._watched_s: float | None = None  # since when

    def watch(self, is_on: bool) -> None:
        """Say in the report of each pass what it was, or no longer."""
        self._watched_s = self._clock() if is_on else None

    @property
    def has_work(self) -> bool:
        """Whether a text waits."""
        return len(self._queue) > 0

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> None:
        """Queue a text. ValueError when a token is wanted of it, or when it is too long."""
        if request.pooling is None:
            raise ValueError("this model turns texts into vectors; it generates nothing")
        if len(request.prompt_ids) > self._longest:
            raise ValueError(f"the text has {len(request.prompt_ids)} tokens, this model reads {self._longest} at most")
        ids = request.prompt_ids
        text = EncoderText(ids, pair_types(ids, self._middle_ids) if self._middle_ids else ())
        self._queue.add(request.id, caller_of(request.id), len(request.prompt_ids), request.priority)
        self._waiting[request.id] = _WaitingText(request, text, now_s, self._arrived)
        self._arrived += 1

    def abort(self, sequence_id: str) -> None:
        """Forget a text; unknown ids are ignored."""
        self._queue.remove(sequence_id)
        self._waiting.pop(sequence_id, None)

    def step(
        self, begin: Callable[[float], None] = lambda _: None, started: Callable[[], None] = lambda: None
    ) -> StepReport:
        """Run one pass; an empty report when no text waits."""
        began = self._clock()
        self.stages.begin()
        rows, names = self._queue.take()
        if not names:
            started()
            return StepReport(())
        begin(self._expected_ms.get(rows, 0.0))
        taken = [self._waiting.pop(name) for name in names]
        batch = pack_texts([each.text for each in taken], rows)
        started()
        self.stages.mark("pack")
        entered = self._clock()
        try:
            hidden = self._runtime.run(batch)
        except PassFailed as error:
            return StepReport((), tuple(Failed(name, str(error)) for name in names))
        left = self._clock()
        self.stages.mark("graph")
        self._count(batch, left - entered)
        events, failures = [], []
        for each, span in zip(taken, batch.spans, strict=True):
            vector = self._read_rows(hidden[span])
            if np.isfinite(vector).all():
                events.append(_event(each, vector, entered, left, batch))
            else:
                failures.append(Failed(each.request.id, "the graph returned numbers that are not finite for this text"))
        self._counters.finished += len(events)
        self._counters.step_s += self._clock() - began
        self.stages.mark("pool")
        return StepReport(tuple(events), tuple(failures), self._record(taken, rows, began, left - entered))

    def _record(self, taken: Sequence[_WaitingText], rows: int, began_s: float, run_s: float) -> PassRecord | None:
        if self._watched_s is None:
            return None
        return PassRecord(
            int(self._counters.passes),
            round(1000.0 * (began_s - self._watched_s), 3),
            round(1000.0 * run_s, 3),
            round(1000.0 * (self._clock() - began_s), 3),
            pool=0,
            rows=rows,
            columns=rows,
            segments=tuple(PassSegment(each.number, "prefill", len(each.text.ids), 0, 0, 0) for each in taken),
            running=0,
            waiting=len(self._queue),
            columns_used=0,
            columns_total=0,
        )

    def stats(self) -> Stats:
        """Counters and gauges of now."""
        return Stats(**summed(self._counters), waiting=len(self._queue), stages=dict(self.stages.seconds))

    def violations(self) -> tuple[str, ...]:
        """A text without a place in the queue would wait for ever."""
        return tuple(f"text {name} waits for no pass" for name in self._waiting if name not in self._queue)

    def finish_writes(self) -> None:
        """There are none."""

    def close(self) -> None:
        """It has no threads."""

    def _count(self, batch: EncoderBatch, run_s: float) -> None:
        counters, rows = self._counters, len(batch.ids)
        used = batch.spans[-1].stop
        counters.passes += 1
        counters.rows_run += rows
        counters.rows_used += used
        counters.prefill_rows += used
        counters.prompt_tokens += used
        counters.variant_switches += self._last_rows not in (0, rows)
        counters.run_s += run_s
        self._expected_ms[rows] = max(self._expected_ms.get(rows, 0.0), 1000.0 * run_s)
        self._last_rows = rows


def caller_of(name: str) -> str:
    """The HTTP request that a text belongs to: ids are REQUEST-NUMBER#COUNT."""
    return name.rpartition("#")[0].rpartition("-")[0] or name


def _event(text: _WaitingText, vector: Float32, entered: float, left: float, batch: EncoderBatch) -> TokenEvent:
    timings = RequestTimings(
        queue_ms=1000 * (entered - text.arrived_s),
        prompt_ms=1000 * (left - entered),
        generate_ms=0.0,
        prompt_tokens=len(text.request.prompt_ids),
        cached_tokens=0,
        generated_tokens=0,
        passes=1,
        pass_rows=batch.spans[-1].stop,
    )
    return TokenEvent(
        text.request.id, (), finish=FinishReason.LENGTH, timings=timings, vector=vector.astype("<f4").tobytes()
    )
