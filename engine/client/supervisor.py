"""Keeps a worker alive. Owns the worker process and every unfinished request. When it dies the next one gets all
unfinished requests, with the tokens already delivered; streams go on as if nothing had happened. A worker that hangs is
killed, which counts as its death. `engine/client/recovery.py` decides which request a death is charged to."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine import messages
from engine.client.info import LEGAL_MOVES, EngineState
from engine.client.recovery import MOST_DEATHS, PendingRequest, charge_death, next_to_send
from engine.client.step_feed import StepFeed
from engine.client.worker_process import USUAL_BOUNDS, HangBounds, Watchdog, WorkerProcess
from engine.errors import BundleError, Busy, BusyReason, EngineFailure, HexserveError, InvalidRequest, WorkerDied
from engine.logs.handler import server_log
from engine.messages import Fatal, HandedOver, Ready, Report, Stats, Submit, summed
from engine.request import Request, TokenEvent

CLOSING = "The server is shutting down."
MOST_UNSENT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the supervisor waits, in seconds, and how often it tries. polite, terminate: after Shutdown, and after
    SIGTERM, before the next harder step. first_backoff doubles up to longest_backoff between workers that die in a row.
    start_attempts: failures to become ready in a row."""

    polite_s: float = 1.0
    terminate_s: float = 0.5
    first_backoff_s: float = 0.1
    longest_backoff_s: float = 5.0
    start_attempts: int = 3


class Supervisor:
    """All methods belong to one event loop. `deliver` and `fail` are plain calls on it and must not raise. on_loss:
    hears of the unfinished requests of a worker that died, and may take some before the next one gets them.
    on_handed: gets a request that was handed over."""

    def __init__(
        self,
        command: Sequence[str],
        deliver: Callable[[TokenEvent], None],
        fail: Callable[[str, HexserveError], None],
        patience: Patience = Patience(),
        hang_bounds: HangBounds = USUAL_BOUNDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        label: str = "",
        on_loss: Callable[[Sequence[PendingRequest]], None] = lambda _: None,
        on_handed: Callable[[PendingRequest], None] = lambda _: None,
    ) -> None:
        self._log = server_log(label)
        self._on_loss, self._on_handed = on_loss, on_handed
        self._command = tuple(command)
        self._deliver, self._fail, self._patience = deliver, fail, patience
        self._hang_bounds = hang_bounds
        self._clock, self._sleep = clock, sleep  # of the watch over the worker
        self._watchdog: Watchdog | None = None  # of the current worker
        self._slowest_load_s: float | None = None
        self.state = EngineState.LOADING
        self.pending: dict[str, PendingRequest] = {}  # in order of submission; `on_loss` may take some away
        self._worker: WorkerProcess | None = None
        self._ready: Ready | None = None  # of the current worker
        self._first_ready: asyncio.Future[Ready] | None = None
        self._task: asyncio.Task[None] | None = None
        self._fatal: Fatal | None = None
        self._past_stats, self._stats = Stats(), Stats()
        self._deaths_in_a_row = 0  # since a token was delivered
        self.steps = self._own_steps = StepFeed(self.tell_watched)  # a group gives another one, which it closes
        self._place = 0  # among those whose steps the feed has
        self.restarts = 0
        self.death_reason = ""

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return self._worker.pid if self._worker is not None else None

    @property
    def stats(self) -> Stats:
        """Counters over all workers so far; gauges of the current one."""
        return add_stats(self._past_stats, self._stats)

    async def start(self) -> Ready:
        """Start the first worker; EngineFailure when none becomes ready. Cancelling it leaves no process behind."""
        assert self._task is None, "a supervisor starts once"
        if self.state is not EngineState.LOADING:  # closed while the bundle was being read
            raise EngineFailure(CLOSING)
        self._place = self.steps.join()
        self._first_ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_alive())
        self._task.add_done_callback(self._on_task_end)
        try:
            return await self._first_ready
        except BaseException:
            await self.close()
            raise

    @property
    def has_room(self) -> bool:
        """Whether the worker reads what it is sent."""
        return self._worker is None or self._worker.unsent_bytes <= MOST_UNSENT_BYTES

    @property
    def is_up(self) -> bool:
        """Whether there is a worker that computes, also while nothing new is taken."""
        return self._worker is not None and self._ready is not None and self.state is not EngineState.RESTARTING

    def check_room(self, request: Request | None = None) -> None:
        """Busy when the worker does not read what it was already sent, whatever the request."""
        if not self.has_room:
            raise Busy("The worker process does not keep up with new requests.", BusyReason.WORKER, retry_after_s=5.0)

    def submit(self, request: Request, emitted: Sequence[int] = ()) -> None:
        """Take a request; it is sent at once, or when the next worker is ready. emitted: its tokens of before."""
        self.adopt(PendingRequest(request, list(emitted), is_resumed=bool(emitted)))

    def adopt(self, pending: PendingRequest) -> None:
        if self.state in (EngineState.DEAD, EngineState.STOPPED):
            _remove_caches(pending)
            return self._fail(pending.request.id, self._ended_failure())
        self.pending[pending.request.id] = pending
        return self._send_pending()

    def hand_over(self, request_id: str, caches: str) -> None:
        """Have the worker write what it has computed of a request and forget it; `on_handed` then gets the request."""
        if self._worker is not None and (pending := self.pending.get(request_id)) is not None and pending.is_sent:
            self._worker.send(messages.HandOver(request_id, caches))

    def abort(self, request_id: str) -> None:
        """Forget a request, here and in the worker; unknown ids are ignored."""
        if (pending := self.pending.pop(request_id, None)) is not None:
            if pending.is_sent and self._worker is not None:
                self._worker.send(messages.Abort(request_id))
            _remove_caches(pending)  # a worker may not have read them
            self._send_pending()  # it may have been a suspect that others waited for

    def drain(self) -> None:
        self._move(EngineState.DRAINING)

    async def close(self) -> None:
        """End the worker and fail what is unfinished. May be repeated, and called at any time."""
        self._move(EngineState.STOPPED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail_all(failure := EngineFailure(CLOSING))
        self._own_steps.close()
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_exception(failure)

    async def _keep_alive(self) -> None:
        failed_starts = 0
        while True:
            reason = await self._run_worker()
            failed_starts = failed_starts + 1 if self._ready is None else 0
            self._after_death(reason)
            fatal = self._fatal
            if fatal is not None and fatal.permanent:
                return self._die(fatal.message, BundleError(fatal.message))
            if failed_starts >= self._patience.start_attempts:
                last = f"{reason} ({fatal.message})" if fatal is not None else reason
                return self._die(f"the worker did not become ready {failed_starts} times in a row; last it {last}")
            await asyncio.sleep(self._backoff_s())

    async def _run_worker(self) -> str:
        """One worker from start to end; says how it ended. Whatever happens, it is gone afterwards."""
        self._ready = self._fatal = None
        try:
            self._worker = await WorkerProcess.start(self._command, self._on_report)
        except OSError as error:
            return f"could not be started: {error}"
        slowest_s, bounds = self._slowest_load_s, self._hang_bounds
        load_s = bounds.load_s if slowest_s is None else bounds.reload_s(slowest_s)
        self._watchdog = Watchdog(bounds, load_s, self._clock())
        watching = asyncio.create_task(self._watch(self._worker, self._watchdog))
        try:
            return await asyncio.shield(self._worker.ended)
        finally:
            watching.cancel()
            await self._end_worker(self._worker)

    async def _watch(self, worker: WorkerProcess, watchdog: Watchdog) -> None:
        """Look after the worker until it hangs; then say so at once and kill it."""
        while (hang := watchdog.tick(self._clock())) is None:
            if watchdog.take_ping():
                worker.send(messages.Ping())
            await self._sleep(self._hang_bounds.period_s)
        self._move(EngineState.RESTARTING)
        worker.kill_hung(hang)

    def _move(self, target: EngineState) -> None:
        """Where the table has no such move the state stays: what is stopped does not restart."""
        if target in LEGAL_MOVES[self.state]:
            self.state = target

    async def _end_worker(self, worker: WorkerProcess) -> None:
        """Stop the worker even if we are cancelled again meanwhile: an orphan would keep the device."""
        self._worker = None
        polite_s = self._patience.polite_s if self._ready is not None else 0.0  # while it loads it does not listen
        stopping = asyncio.ensure_future(worker.stop(polite_s, self._patience.terminate_s))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            worker.kill()
            await asyncio.wait([stopping])
            raise

    def _after_death(self, reason: str) -> None:
        if self._fatal is not None:
            reason = f"{reason}: {self._fatal.message}"
        self.death_reason = f"the worker {reason}"
        self._past_stats, self._stats = add_stats(self._past_stats, self._stats, with_gauges=False), Stats()
        self._deaths_in_a_row += 1
        lost = sum(pending.is_sent for pending in self.pending.values())
        if self._fatal is None or not self._fatal.permanent:
            self._log.error("worker %s; %d unfinished requests go on with the next one", reason, lost)
        for pending in self.pending.values():
            if pending.is_sent:
                _remove_caches(pending)
        failure = WorkerDied(f"The worker process died {MOST_DEATHS} times while this request ran.")
        for pending in charge_death(self.pending.values()):
            del self.pending[pending.request.id]
            self._fail(pending.request.id, failure)
        if self._ready is not None:
            self.restarts += 1
        self._move(EngineState.RESTARTING)
        self._on_loss(list(self.pending.values()))

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        """A bug of ours must not leave callers waiting for a worker that nobody starts."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._die(f"the supervisor failed: {error!r}")

    def _backoff_s(self) -> float:
        doubled = self._patience.first_backoff_s * 2.0 ** min(self._deaths_in_a_row - 1, 16)
        return min(self._patience.longest_backoff_s, doubled)

    def _die(self, reason: str, unusable: BundleError | None = None) -> None:
        """Give up: a `start` that still waits raises the reason, later it is logged."""
        self.death_reason = reason
        self._move(EngineState.DEAD)
        self._fail_all(failure := self._ended_failure())
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_exception(unusable or failure)
        else:
            self._log.critical("this worker is not started again: %s", reason)

    def _ended_failure(self) -> EngineFailure:
        stopped = self.state is EngineState.STOPPED
        return EngineFailure(CLOSING if stopped else f"The engine is not running: {self.death_reason}")

    def _fail_all(self, error: HexserveError) -> None:
        pendings, self.pending = self.pending, {}
        for request_id in pendings:
            self._fail(request_id, error)

    def _on_report(self, worker: WorkerProcess, report: Report) -> None:
        if worker is not self._worker:
            return
        match report:
            case messages.Tokens(events, stats):
                self._stats = stats
                for event in events:
                    self._on_event(event)
            case messages.Failed(request_id, message, kind):
                if self.pending.pop(request_id, None) is not None:
                    self._fail(request_id, InvalidRequest(message) if kind == "invalid" else EngineFailure(message))
                    self._send_pending()
            case HandedOver():
                self._on_handed_over(report)
            case messages.Heartbeat():
                if self._watchdog is not None:
                    self._watchdog.heard(report)
            case messages.StepRecord():
                self.steps.give(report, self._place)
            case Ready():
                self._on_ready(report)
            case Fatal():
                self._fatal = report
                worker.end_soon()

    def _on_ready(self, ready: Ready) -> None:
        self._ready = ready
        if self._watchdog is not None:
            self._watchdog.ready()
            self._slowest_load_s = max(self._slowest_load_s or 0.0, self._watchdog.load_s)
        self._move(EngineState.READY)
        self._log.info("worker ready: %s on %s", ready.bundle, ready.device)
        if self._first_ready is not None and not self._first_ready.done():
            self._first_ready.set_result(ready)
        if self.steps.is_watched:
            self.tell_watched(True)
        self._send_pending()

    def _on_handed_over(self, report: HandedOver) -> None:
        if (pending := self.pending.pop(report.id, None)) is None:  # it has ended or was aborted meanwhile
            return Path(report.caches).unlink(missing_ok=True)
        pending.caches, pending.caches_ms = report.caches if report.blocks else "", report.ms
        pending.is_sent = pending.has_progressed = False
        pending.was_moved = True
        return self._on_handed(pending)

    def _on_event(self, event: TokenEvent) -> None:
        pending = self.pending.get(event.id)
        if pending is None:
            return  # aborted while the event was under way
        was_suspect = pending.is_suspect
        pending.progress(event.token_ids)
        self._deaths_in_a_row = 0
        if event.finish is not None:
            del self.pending[event.id]
        if was_suspect:
            self._send_pending()
        if pending.was_moved:  # what it found cached here, the other device has computed
            event = replace(event, cached_tokens=0)
        if event.timings is not None and (pending.is_resumed or pending.was_moved):  # this worker timed the last part
            event = replace(event, timings=None)
        self._deliver(event)

    def tell_watched(self, is_on: bool) -> None:
        """A worker that is not ready yet is told when it is."""
        if self._worker is not None and self._ready is not None:
            self._worker.send(messages.Watch(is_on))

    def _send_pending(self) -> None:
        if self._worker is not None and self._ready is not None:
            for pending in next_to_send(self.pending.values()):
                pending.is_sent = True
                self._worker.send(Submit(pending.request, tuple(pending.emitted), pending.caches))


def add_stats(past: Stats, current: Stats, with_gauges: bool = True) -> Stats:
    return msgspec.structs.replace(current if with_gauges else Stats(), **summed(past, current))


def _remove_caches(pending: PendingRequest) -> None:
    if pending.caches:
        Path(pending.caches).unlink(missing_ok=True)
