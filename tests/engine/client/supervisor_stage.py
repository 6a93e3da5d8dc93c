"""Supervisors over scripted workers, and what they delivered."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.client.supervisor import Patience, Supervisor
from engine.errors import HexserveError
from engine.request import Request, SamplingParams, TokenEvent
from tests.engine.client.scripted_worker import expected_token

SCRIPT = Path(__file__).with_name("scripted_worker.py")
QUICK = Patience(polite_s=5.0, terminate_s=0.05, first_backoff_s=0.0, longest_backoff_s=0.0)
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
GUARD_S = 30.0


@dataclass
class Listener:
    """What the supervisor delivered; `when` waits for a condition over it."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    errors: dict[str, HexserveError] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, event: TokenEvent) -> None:
        self.tokens.setdefault(event.id, []).extend(event.token_ids)
        if event.finish is not None:
            self.finished.add(event.id)
        self.changed.set()

    def fail(self, request_id: str, error: HexserveError) -> None:
        self.errors[request_id] = error
        self.changed.set()

    async def when(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(GUARD_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Scene:
    """A supervisor over scripted workers."""

    folder: Path
    listener: Listener
    opened: list[Supervisor] = field(default_factory=list)

    def supervisor(self, *starts: str, patience: Patience = QUICK, **watch: Any) -> Supervisor:
        """One over workers that start so; `watch` are the Supervisor's arguments about workers that hang."""
        script = json.dumps({"folder": str(self.folder), "starts": starts or ("ready",)})
        command = [sys.executable, str(SCRIPT), script]
        made = Supervisor(command, self.listener.deliver, self.listener.fail, patience, **watch)
        self.opened.append(made)
        return made

    @property
    def starts(self) -> list[int]:
        """Process ids of all workers that ever started."""
        path = self.folder / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest_asyncio.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = Scene(tmp_path, Listener())
    yield made
    for supervisor in made.opened:
        await supervisor.close()
    if sys.platform != "win32":
        for pid in made.starts:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def request(name: str, text: str = "hello", tokens: int = 12) -> Request:
    """A request whose prompt is the bytes of `text`."""
    return Request(name, tuple(text.encode()), SamplingParams(tokens))


def expected(asked: Request) -> list[int]:
    """Its tokens, by hand."""
    return [expected_token(asked.prompt_ids, index) for index in range(asked.params.max_tokens)]
