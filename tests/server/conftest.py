"""Shared by the server's tests: a scripted engine behind the real app, in process or on a loopback port."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from engine.config import EngineConfig
from server.middleware.auth import KeyRing
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine


@pytest.fixture
def settings() -> Settings:
    return Settings(EngineConfig("unused"), max_queued=16, body_limit_bytes=64 * 1024)


@pytest.fixture
async def engine(settings: Settings) -> ScriptedEngine:
    return ScriptedEngine(max_queued=settings.max_queued)


@pytest.fixture
async def app(settings: Settings, engine: ScriptedEngine) -> FastAPI:
    return create_app(settings, engine, KeyRing())


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


@pytest.fixture
async def base_url(app: FastAPI) -> AsyncIterator[str]:
    """The app behind a real uvicorn on a free loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, lifespan="off"))
    serving = asyncio.create_task(server._serve([listener]))  # serve() would take the test process's signals
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await serving
