"""What the worker process needs of a loop, whatever it computes, and what a start comes to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.graphs.stage_clock import StageClock
from engine.messages import Failed, PassRecord, Ready, Stats
from engine.request import Request, TokenEvent
from engine.worker.kv_restart import KvRestart


@dataclass(frozen=True, slots=True)
class StepReport:
    """The result of a step: events of sequences with new tokens or an end, and the sequences that failed.

    record: what the pass was, while somebody watches.
    """

    events: tuple[TokenEvent, ...]
    failures: tuple[Failed, ...] = ()
    record: PassRecord | None = None


class WorkLoop(Protocol):
    """Requests in, passes, reports out. One thread."""

    @property
    def stages(self) -> StageClock:
        """Where the time of steps goes."""

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> None:
        """Queue a request; `emitted` are tokens of an earlier worker. ValueError when it can never run."""

    def abort(self, sequence_id: str) -> None:
        """Forget a request; unknown ids are ignored."""

    def step(
        self, begin: Callable[[float], None] = lambda _: None, started: Callable[[], None] = lambda: None
    ) -> StepReport:
        """Run one pass. `begin` is told the milliseconds it should take, 0 = not known; `started` that it starts."""

    def watch(self, is_on: bool) -> None:
        """Say in the report of each pass what it was, or no longer."""

    def stats(self) -> Stats:
        """Counters and gauges of now."""

    def violations(self) -> Sequence[str]:
        """What is broken of the rules that must hold while nothing runs."""

    def finish_writes(self) -> None:
        """Until nothing is written any more."""

    def close(self) -> None:
        """Let its threads end."""


class Closable(Protocol):
    """What holds graphs until it is closed."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Assembled:
    """A loop ready to step, and what to tell the parent about it. kv_file: where its pages outlive it, if anywhere."""

    loop: WorkLoop
    runtime: Closable
    ready: Ready
    kv_file: KvRestart | None = None
