"""A stream that breaks off and goes on elsewhere, by replicas whose answers are written here; Ray is not needed."""

import importlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest

from deploy.gateway_calls import Call, Exchange
from engine.request import Delta
from server.generation.stream import ChoiceDelta, comment

STREAM = (200, [("content-type", "text/event-stream")])
FULL = (503, [("content-type", "application/json")])
LOSS = httpx.ReadError("gone")
DONE = b"data: [DONE]\n\n"


def event(text: str, token: int) -> bytes:
    return f'data: "{text}"\n\n'.encode() + comment([ChoiceDelta(0, Delta(text, (token,)))])


class Answer:
    """One answer: its head, then bytes, and a loss where an exception stands."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = iter(items)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        item = next(self._items, StopAsyncIteration())
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        """Nobody reads on."""


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with names of Ray that stand for nothing, and without its waits."""
    for name, known in (("exceptions", "RayError"), ("serve.exceptions", "RayServeException")):
        module = ModuleType(f"ray.{name}")
        setattr(module, known, type(known, (Exception,), {}))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    handle = ModuleType("ray.serve.handle")
    monkeypatch.setattr(handle, "DeploymentHandle", object, raising=False)
    monkeypatch.setitem(sys.modules, handle.__name__, handle)
    for name in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delitem(sys.modules, "deploy.gateway_relay", raising=False)
    module = importlib.import_module("deploy.gateway_relay")

    async def at_once(_: float) -> None:
        """No wait."""

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=at_once))
    return module


async def streamed(relay: ModuleType, *answers: Sequence[Any]) -> bytes:
    """What the client gets of a stream whose servers give these answers in turn; the last one again and again."""
    left, asked = list(answers), list[Call]()

    def remote(call: Call) -> Answer:
        asked.append(call)
        return Answer(left.pop(0) if len(left) > 1 else left[0])

    body = json.dumps({"model": "m", "messages": [], "stream": True}).encode()
    replicas = SimpleNamespace(relay=SimpleNamespace(remote=remote))
    made = relay.Relayed(replicas, Exchange("POST", "/v1/chat/completions", {}, body))
    await made.begin()
    return b"".join([piece async for piece in made.pieces()])


async def test_a_server_that_refuses_to_go_on_is_passed_over(relay: ModuleType) -> None:
    refusal = [FULL, b'{"error": {"message": "The server is full."}}']
    found = await streamed(relay, [STREAM, event("a", 1), LOSS], refusal, [STREAM, event("b", 2), DONE])
    assert found == b'data: "a"\n\ndata: "b"\n\n' + DONE


async def test_a_stream_with_which_no_server_goes_on_breaks_off(relay: ModuleType) -> None:
    with pytest.raises(httpx.ReadError, match="gone"):
        await streamed(relay, [STREAM, event("a", 1), LOSS], [FULL, b'{"error": {}}'])
