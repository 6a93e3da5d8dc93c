"""Workers that hang: killed, replaced, and no stream notices. Time stands still while no worker hangs."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.client import worker_process
from engine.client.info import EngineState
from engine.client.supervisor import Patience, Supervisor
from engine.client.worker_process import WorkerProcess
from engine.errors import EngineFailure, WorkerDied
from tests.engine.client.supervisor_stage import GUARD_S, Scene, expected, request, scene

__all__ = ["scene"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no signal stops a process")


@dataclass
class HangTime:
    """The clock of a watch: it runs while the current worker is known to hang, so no machine is too slow."""

    folder: Path
    now_s: float = 0.0
    supervisor: Supervisor | None = None

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        while self.supervisor is None or not self._mark(self.supervisor.pid).exists():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)
        self.now_s += seconds

    def stop(self, pid: int) -> None:
        """Stop a worker from outside."""
        os.kill(pid, signal.SIGSTOP)
        self._mark(pid).touch()

    def _mark(self, pid: int | None) -> Path:
        return self.folder / f"hung.{pid}"


def watched(scene: Scene, *starts: str) -> tuple[Supervisor, HangTime]:
    """A supervisor that looks at its workers in the time of the test."""
    time = HangTime(scene.folder)
    time.supervisor = scene.supervisor(*starts, clock=time.clock, sleep=time.sleep)
    return time.supervisor, time


async def test_a_stopped_worker_costs_no_token(scene: Scene) -> None:
    supervisor, time = watched(scene)
    await supervisor.start()
    requests = [request(f"r{i}", f"prompt {i} hold@{1 + i % 5}") for i in range(32)]
    for asked in requests:
        supervisor.submit(asked)
    await scene.listener.when(lambda: all(len(scene.listener.tokens.get(f"r{i}", ())) == 1 + i % 5 for i in range(32)))
    assert supervisor.pid is not None
    time.stop(supervisor.pid)
    await scene.listener.when(lambda: len(scene.listener.finished) == 32)
    assert all(scene.listener.tokens[asked.id] == expected(asked) for asked in requests)
    assert (supervisor.restarts, supervisor.state, scene.listener.errors) == (1, EngineState.READY, {})
    assert supervisor.death_reason == "the worker did not answer for 30 s and was killed by SIGKILL"


async def test_a_worker_that_is_stopped_while_idle_is_replaced_before_anyone_asks(scene: Scene) -> None:
    supervisor, _ = watched(scene, "stop", "ready")
    await supervisor.start()
    async with asyncio.timeout(GUARD_S):
        while supervisor.restarts == 0 or supervisor.state is not EngineState.READY:
            await asyncio.sleep(0)
    supervisor.submit(request("a"))
    await scene.listener.when(lambda: "a" in scene.listener.finished)
    assert len(scene.starts) == 2


@pytest.mark.parametrize("poison", ["stop@0", "stop@4", "stuck@3"])
async def test_a_request_that_hangs_the_worker_fails_after_three_times_and_the_others_go_on(
    scene: Scene, poison: str
) -> None:
    supervisor, _ = watched(scene)
    await supervisor.start()
    innocents = [request(f"r{i}", f"prompt {i}", tokens=40) for i in range(5)]
    for asked in (*innocents[:3], request("poison", poison), *innocents[3:]):
        supervisor.submit(asked)
    await scene.listener.when(lambda: len(scene.listener.finished) == 5 and "poison" in scene.listener.errors)
    assert isinstance(scene.listener.errors.pop("poison"), WorkerDied)
    assert scene.listener.errors == {}
    assert scene.listener.tokens.get("poison", []) == expected(request("poison", poison))[: int(poison[-1])]
    assert all(scene.listener.tokens[asked.id] == expected(asked) for asked in innocents)
    assert (supervisor.restarts, len(scene.starts), supervisor.state) == (3, 4, EngineState.READY)


async def test_starts_that_hang_are_the_end_like_starts_that_fail(scene: Scene) -> None:
    supervisor, _ = watched(scene, "hang")
    with pytest.raises(EngineFailure, match=r"3 times in a row; last it was not ready after 1800 s and was killed"):
        await supervisor.start()
    assert len(scene.starts) == 3


async def test_readiness_tells_of_a_hung_worker_before_it_is_killed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, time = watched(scene)
    kill, states = WorkerProcess.kill, []

    def kill_and_tell(worker: WorkerProcess) -> None:
        states.append(supervisor.state)
        kill(worker)

    monkeypatch.setattr(WorkerProcess, "kill", kill_and_tell)
    await supervisor.start()
    supervisor.submit(request("a", "hold@2"))
    await scene.listener.when(lambda: len(scene.listener.tokens.get("a", ())) == 2)
    assert supervisor.pid is not None
    time.stop(supervisor.pid)
    await scene.listener.when(lambda: "a" in scene.listener.finished)
    assert states[0] is EngineState.RESTARTING


# What is given up is still running when its Popen goes, and says so.
given_up = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@given_up
async def test_a_worker_that_no_signal_reaches_keeps_nobody_from_ending(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a driver call that never returns: the kernel keeps the signal until then."""
    monkeypatch.setattr(worker_process, "GIVE_UP_S", 0.05)
    monkeypatch.setattr(WorkerProcess, "_signal", lambda _, is_last: None)
    supervisor = scene.supervisor("mute", patience=Patience(polite_s=0.05, terminate_s=0.05))
    await supervisor.start()
    pid = supervisor.pid
    assert pid is not None
    supervisor.submit(request("a"))
    try:
        async with asyncio.timeout(GUARD_S):
            await supervisor.close()
        assert supervisor.state is EngineState.STOPPED
        assert isinstance(scene.listener.errors["a"], EngineFailure)
    finally:
        await killed(pid)


@given_up
async def test_a_worker_that_no_signal_reaches_is_replaced(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "GIVE_UP_S", 0.05)
    supervisor, time = watched(scene)
    await supervisor.start()
    supervisor.submit(request("a", "hold@2"))
    await scene.listener.when(lambda: len(scene.listener.tokens.get("a", ())) == 2)
    pid = supervisor.pid
    assert pid is not None
    try:
        with monkeypatch.context() as patch:
            patch.setattr(WorkerProcess, "_signal", lambda _, is_last: None)
            time.stop(pid)
            await scene.listener.when(lambda: "a" in scene.listener.finished)
        assert scene.listener.tokens["a"] == expected(request("a", "hold@2"))
        assert "could not be killed" in supervisor.death_reason
    finally:
        await killed(pid)


async def killed(pid: int) -> None:
    """End a child of ours unless it has ended, and wait until it is reaped."""
    if alive(pid):
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(GUARD_S):
        while alive(pid):
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
