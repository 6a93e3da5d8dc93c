"""Engines over scripted workers and a tiny bundle, for the tests of the client."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest_asyncio

from engine.client.engine import ClientLimits, Engine, TokenStream
from engine.config import EngineConfig
from engine.request import Delta, Request, SamplingParams
from tests.engine.client.scripted_worker import expected_text
from tests.engine.tiny_bundle import write_bundle

SCRIPT = Path(__file__).with_name("scripted_worker.py")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
GUARD_S = 30.0
CONTEXT = 4096
DEFAULTS = ClientLimits()


class Stage:
    """Makes engines over one bundle and closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[Engine] = []

    async def engine(self, *starts: str, limits: ClientLimits = DEFAULTS) -> Engine:
        script = json.dumps({"folder": str(self.folder), "starts": starts or ("ready",)})
        made = Engine(EngineConfig(str(self.folder)), limits, [sys.executable, str(SCRIPT), script])
        self.engines.append(made)
        async with asyncio.timeout(GUARD_S):
            await made.start()
        return made


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    write_bundle(tmp_path, CONTEXT)
    made = Stage(tmp_path)
    yield made
    for engine in made.engines:
        await engine.close()
        assert engine.unfinished == 0


def request(name: str, text: str = "hello", tokens: int = 12, **params: object) -> Request:
    """A request whose prompt is the bytes of `text`."""
    return Request(name, tuple(text.encode()), replace(SamplingParams(tokens), **params))  # type: ignore[arg-type]


def expected(asked: Request) -> str:
    """Its text, by hand."""
    return expected_text(asked.prompt_ids, asked.params.max_tokens)


async def read(stream: TokenStream) -> list[Delta]:
    """Every delta."""
    async with asyncio.timeout(GUARD_S):
        return [delta async for delta in stream]


async def text_of(stream: TokenStream) -> str:
    """The whole text."""
    return "".join(delta.text for delta in await read(stream))
