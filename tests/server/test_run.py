"""The life of the server: load, drain, end. In process, with real signals."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from engine.client.info import EngineState
from engine.config import EngineConfig
from engine.errors import BundleError, EngineFailure, HexserveError
from server import run
from server.http import connections
from server.middleware.auth import KeyRing
from server.settings import Settings
from tests.server.one_model import one_model
from tests.server.scripted_engine import NAME, ScriptedEngine

ROOT = Path(__file__).parents[2]
DRAINING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
STREAM = {"model": NAME, "messages": [{"role": "user", "content": "hello"}], "stream": True}


class LivingEngine(ScriptedEngine):
    """A scripted engine that loads when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.state = EngineState.LOADING
        self.may_load = asyncio.Event()
        self.failure: HexserveError | None = None
        self.closes = 0
        self.loading: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.closing: Callable[[], None] = lambda: None

    async def start(self) -> None:
        await self.may_load.wait()
        await self.loading()
        if self.failure is not None:
            raise self.failure
        self.state = EngineState.READY

    async def close(self) -> None:
        self.closes += 1
        self.closing()
        self.state = EngineState.STOPPED


class Life:
    """A server that runs in a task, and a client for it."""

    def __init__(self, engine: LivingEngine, drain_s: float = 60.0) -> None:
        self.engine = engine
        listener = run.bind("127.0.0.1", 0)
        settings = Settings(EngineConfig("unused"), drain_s=drain_s)
        models = one_model(engine, settings)
        self.serving = asyncio.create_task(run.serve(settings, KeyRing(), models, listener))
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=10)

    async def ready(self, status: int = 200) -> None:
        while (await self.client.get("/health/ready")).status_code != status:
            pass

    async def end(self) -> int:
        async with asyncio.timeout(10):
            code = await self.serving
        await self.client.aclose()
        assert self.engine.closes == 1
        return code


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Life]]:
    lives: list[Life] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL) if sys.platform != "win32" else None  # nohup ignores it

    def start(loads: bool = True, **options: Any) -> Life:
        engine = LivingEngine()
        if loads:
            engine.may_load.set()
        lives.append(Life(engine, **options))
        return lives[-1]

    yield start
    for life in lives:
        if not life.serving.done():
            life.serving.cancel()
        await life.client.aclose()
    if before is not None:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", DRAINING)
async def test_a_signal_lets_running_streams_finish(start: Callable[..., Life], number: signal.Signals) -> None:
    life = start()
    await life.ready()
    life.engine.hold(1)
    async with life.client.stream("POST", "/v1/chat/completions", json=STREAM) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        signal.raise_signal(number)
        await life.ready(503)
        refused = await life.client.post("/v1/chat/completions", json=STREAM)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert (await life.client.get("/health/live")).status_code == 200
        life.engine.release(100)
        assert [line async for line in lines][-2:] == ["data: [DONE]", ""]
    assert await life.end() == run.ENDED


async def test_uvicorn_wakes_nobody_up_and_answers_have_their_date(
    start: Callable[..., Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick(*_: object) -> None:
        raise AssertionError("uvicorn looks ten times a second whether it is to end")

    monkeypatch.setattr(uvicorn.Server, "on_tick", tick)
    for now in ("Thu, 26 Nov 2026 04:05:06 GMT", "Fri, 27 Nov 2026 04:05:06 GMT"):
        monkeypatch.setattr(connections, "formatdate", lambda usegmt, now=now: now)
        life = start()
        await life.ready()
        assert (await life.client.get("/health/ready")).headers["date"] == now
        signal.raise_signal(signal.SIGINT)
        assert await life.end() == run.ENDED


@pytest.mark.parametrize("drain_s", [0.0, 0.05])
async def test_what_does_not_finish_in_time_gets_an_error_event(start: Callable[..., Life], drain_s: float) -> None:
    life = start(drain_s=drain_s)
    await life.ready()
    assert await cut_short(life, signal.SIGTERM) == "The server is shutting down."
    assert await life.end() == run.ENDED


async def test_sigint_ends_streams_at_once(start: Callable[..., Life]) -> None:
    life = start()
    await life.ready()
    assert await cut_short(life, signal.SIGINT) == "The server is shutting down."
    assert await life.end() == run.ENDED
    assert len(life.engine.aborted) == 1


async def test_a_second_signal_does_not_wait_for_the_drain(start: Callable[..., Life]) -> None:
    life = start()
    await life.ready()
    assert await cut_short(life, signal.SIGTERM, signal.SIGTERM) == "The server is shutting down."
    assert await life.end() == run.ENDED


async def cut_short(life: Life, *signals: signal.Signals) -> str:
    """Send signals while a stream is open; the message of its last event."""
    life.engine.hold(1)
    async with life.client.stream("POST", "/v1/chat/completions", json=STREAM) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        for number in signals:
            signal.raise_signal(number)
        events = [line async for line in lines if line]
    message = json.loads(events[-1].removeprefix("data: "))["error"]["message"]
    assert isinstance(message, str)
    return message


async def test_a_signal_while_loading(start: Callable[..., Life]) -> None:
    life = start(loads=False)
    await life.ready(503)
    signal.raise_signal(signal.SIGINT)
    assert await life.end() == run.ENDED


@pytest.mark.parametrize("number", [*DRAINING, signal.SIGINT])
@pytest.mark.parametrize("turns", range(8))
async def test_a_signal_in_the_last_turns_of_loading(
    start: Callable[..., Life], number: signal.Signals, turns: int
) -> None:
    """The listener may be closed by then; turns are those of the loop."""

    async def signalled() -> None:
        signal.raise_signal(number)
        for _ in range(turns):
            await asyncio.sleep(0)

    life = start(loads=False)
    await life.ready(503)
    life.engine.loading = signalled
    life.engine.may_load.set()
    assert await life.end() == run.ENDED


@pytest.mark.parametrize("number", [*DRAINING, signal.SIGINT])
async def test_a_signal_while_the_engine_ends_changes_nothing(
    start: Callable[..., Life], number: signal.Signals
) -> None:
    life = start()
    await life.ready()
    life.engine.closing = lambda: signal.raise_signal(number)
    signal.raise_signal(signal.SIGTERM)
    assert await life.end() == run.ENDED


async def test_signals_are_heeded_before_the_app_is_imported(
    start: Callable[..., Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, heeding = run._app_parts, list[object]()

    def imported() -> object:
        heeding.extend(signal.getsignal(number) for number in (signal.SIGINT, *DRAINING))
        signal.raise_signal(signal.SIGTERM)
        return parts()

    monkeypatch.setattr(run, "_app_parts", imported)
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: None)  # lest a server that does not heed it yet ends the tests
    life = start()
    assert await life.end() == run.ENDED
    signal.signal(signal.SIGTERM, before)
    assert {getattr(handler, "__name__", "") for handler in heeding} == {"handle_exit"}


def test_the_second_signal_waits_for_no_thread() -> None:
    command = [sys.executable, "-m", "tests.server.stuck_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "ready\n"
        while server.poll() is None:
            server.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(0.05)  # a flood of signals would be one of handlers inside handlers
    assert server.returncode == run.ENDED


@pytest.mark.parametrize(
    ("failure", "code"), [(BundleError("no such bundle"), run.UNUSABLE), (EngineFailure("it broke"), run.BROKEN)]
)
async def test_an_engine_that_does_not_start(
    start: Callable[..., Life], failure: HexserveError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    life = start(loads=False)
    life.engine.failure = failure
    life.engine.may_load.set()
    assert await life.end() == code
    assert capsys.readouterr().err == f"error: {failure}\n"


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        run.bind("127.0.0.1", taken.getsockname()[1])


def test_clients_close_idle_connections_before_the_server_does(settings: Settings) -> None:
    """Otherwise a request may meet a connection that is just being closed; httpx keeps one for 5 s."""
    kept = httpx.Limits().keepalive_expiry
    assert kept is not None and 2 * kept < run.IDLE_CONNECTION_S
