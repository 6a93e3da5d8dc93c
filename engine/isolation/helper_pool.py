"""A few helper processes for questions that may never be answered: each costs its own asker and no neighbour. A helper
answers one question at a time, says at once that it has taken it, and ends itself by SIGALRM when the answer takes too
long. If it dies otherwise or hangs, a fresh one is asked once more: it may be no fault of the question."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import Busy, EngineFailure, HexserveError
from engine.isolation.framing import framed, next_frame
from engine.logs.handler import server_log
from engine.processes import child_environment, own_group

END_S = 3.0
START_S = 60.0
TAKE_S = 2.0  # a helper that waits takes a question at once, unless it is stopped
GRACE_S = 1.0  # for a helper to end itself, before it counts as hung
GROW_AFTER_S = 0.05  # most answers take less: a busy helper is free before another one would have started
OUT_OF_TIME = -int(getattr(signal, "SIGALRM", 14))
ENDS_ITSELF = hasattr(signal, "SIGALRM")  # on Windows nobody can tell who hangs from who is too slow


class HelperProcess:
    """A process that answers every frame on its standard input with two: an empty one (taken) and the answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> "HelperProcess":
        """Start `command`; its errors go to ours. OSError when it cannot start."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, env=child_environment(), **own_group()
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def give(self, body: bytes) -> None:
        """Returns when the question was taken. IncompleteReadError, OSError: it ended. ValueError: no frames."""
        assert self._process.stdin is not None
        self._process.stdin.write(framed(body))
        await self._process.stdin.drain()
        await self.answer()

    async def answer(self) -> bytes:
        """Its next frame; raises as `give`."""
        assert self._process.stdout is not None
        return await next_frame(self._process.stdout)

    async def last_status(self) -> int | None:
        """How a process ended whose output has ended, a negative signal number on POSIX; None when it does not end.
        Not killed first: before a signal `subprocess` looks whether it has ended, and asyncio never learns how."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_S)
        return self._process.returncode

    async def end(self) -> None:
        """Kill it, for it has nothing to lose; where the kernel does not let go of it, it is not waited for."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self.last_status()
        if self._process.stdin is not None:
            self._process.stdin.close()


class Failure(StrEnum):
    TOO_SLOW = "it overran its time"
    HUNG = "it neither answered nor ended"
    DIED = "it died"


WORTH_ASKING_AGAIN = (Failure.HUNG, Failure.DIED)
Answer = bytes | Failure


@dataclass(frozen=True, slots=True)
class HelperLimits:
    """budget_s, opening_s: longest answer, and to the opening. processes: most at once, started when needed. idle_s:
    how long one lives that nobody asks."""

    budget_s: float = 2.0
    processes: int = 4
    opening_s: float = 10.0
    idle_s: float = 300.0


class HelperPool:
    """All methods belong to one event loop. `command` starts a helper, which writes one frame when it is up. `opening`
    is the first question to every helper; `accept` takes what became of it, HexserveError if it is no use."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        opening: bytes,
        accept: Callable[[Answer], None],
        limits: HelperLimits,
        label: str = "",
    ) -> None:
        """`name`: what a helper is called in a sentence. label: of log lines, '' = none."""
        self._log = server_log(label)
        self._name = name
        self._command = tuple(command)
        self._opening, self._accept = opening, accept
        self._budget_s, self._opening_s, self._idle_s = limits.budget_s, limits.opening_s, limits.idle_s
        self._turns = asyncio.Semaphore(limits.processes)  # a turn is the right to one process
        self._idle: asyncio.LifoQueue[HelperProcess] = asyncio.LifoQueue()
        self._alive: set[HelperProcess] = set()
        self._timers: dict[HelperProcess, asyncio.TimerHandle] = {}  # of those that wait
        self._ends: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(helper.pid for helper in self._alive)

    async def start(self) -> None:
        """Start the first helper. Raises what `accept` raises, EngineFailure when it cannot start, Busy when closed."""
        self._rest(await self._fresh())

    async def ask(self, question: bytes) -> Answer:
        """The answer, or why there is none. Raises as `start` does."""
        async with self._turns:
            helper = await self._taken()
            answer = await self._asked(helper, question, self._budget_s)
            if answer in WORTH_ASKING_AGAIN:
                self._log.warning("%s failed: %s; another one is asked", self._name, answer)
                helper = await self._fresh()
                answer = await self._asked(helper, question, self._budget_s)
            if isinstance(answer, bytes):
                self._rest(helper)
            return answer

    async def close(self) -> None:
        """End every helper; who waits for one hears Busy. May be repeated."""
        self._is_closed = True
        for helper in list(self._alive):
            await self._end(helper)
        await asyncio.gather(*self._ends)

    def _rest(self, helper: HelperProcess) -> None:
        """It waits for a question, for so long: the last one that answered is asked first, so others end."""
        self._idle.put_nowait(helper)
        self._timers[helper] = asyncio.get_running_loop().call_later(self._idle_s, self._expire, helper)

    def _expire(self, helper: HelperProcess) -> None:
        waiting = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        for other in reversed(waiting):
            if other is not helper:
                self._idle.put_nowait(other)
        self._ends.add(ending := asyncio.create_task(self._end(helper)))
        ending.add_done_callback(self._ends.discard)

    async def _taken(self) -> HelperProcess:
        """An idle helper; a fresh one when there is none at all or none becomes idle within a moment."""
        while self._alive:
            try:
                async with asyncio.timeout(GROW_AFTER_S):
                    helper = await self._idle.get()
            except TimeoutError:
                break
            self._stop_timer(helper)
            if not helper.has_ended:
                return helper
            await self._end(helper)
        return await self._fresh()

    async def _fresh(self) -> HelperProcess:
        """A new helper that has accepted the opening."""
        for _ in range(2):
            helper = await self._started()
            answer = await self._asked(helper, self._opening, self._opening_s)
            if answer not in WORTH_ASKING_AGAIN:
                break
        try:
            self._accept(answer)
        except HexserveError:
            await self._end(helper)
            raise
        return helper

    async def _started(self) -> HelperProcess:
        if self._is_closed:
            raise Busy.shutting_down()
        try:
            helper = await HelperProcess.start(self._command)
        except OSError as error:
            raise EngineFailure(f"{self._name} could not be started: {error}") from None
        self._alive.add(helper)
        try:
            async with asyncio.timeout(START_S):
                await helper.answer()
        except (TimeoutError, asyncio.IncompleteReadError, OSError, ValueError):
            await self._end(helper)
            raise (Busy.shutting_down() if self._is_closed else EngineFailure(f"{self._name} did not start")) from None
        except asyncio.CancelledError:
            await asyncio.shield(self._end(helper))
            raise
        if self._is_closed:  # while it was created: nobody else would end it
            await self._end(helper)
            raise Busy.shutting_down()
        return helper

    async def _asked(self, helper: HelperProcess, question: bytes, budget_s: float) -> Answer:
        """What became of a question; unless it was answered the helper is ended, also when nobody waits any more."""
        is_taken = False
        try:
            async with asyncio.timeout(TAKE_S):
                await helper.give(question)
            is_taken = True
            async with asyncio.timeout(budget_s + GRACE_S if ENDS_ITSELF else budget_s):
                return await helper.answer()
        except TimeoutError:
            await self._end(helper)
            return Failure.HUNG if ENDS_ITSELF or not is_taken else Failure.TOO_SLOW
        except (asyncio.IncompleteReadError, OSError, ValueError) as error:
            has_ended = not isinstance(error, ValueError)  # else it lives, and writes what is no frame
            status = await helper.last_status() if has_ended else None
            await self._end(helper)
            return Failure.TOO_SLOW if status == OUT_OF_TIME else Failure.DIED
        except asyncio.CancelledError:
            await asyncio.shield(self._end(helper))
            raise

    async def _end(self, helper: HelperProcess) -> None:
        self._alive.discard(helper)
        self._stop_timer(helper)
        await helper.end()

    def _stop_timer(self, helper: HelperProcess) -> None:
        if timer := self._timers.pop(helper, None):
            timer.cancel()
