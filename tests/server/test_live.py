"""A real uvicorn on a loopback port, driven by openai-python, and by clients that misbehave."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from engine.config import EngineConfig
from engine.errors import Busy, BusyReason, StepFailed, WorkerDied
from engine.request import Delta
from server.settings import Settings
from tests.server.scripted_engine import NAME, ScriptedEngine, say

HELLO: Any = [{"role": "user", "content": "say hello"}]
PATIENCE_S = 10.0


def request_head(length: int) -> bytes:
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


@pytest.fixture
async def sdk(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_chat(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=NAME, messages=HELLO, n=2)
    assert [choice.message.content for choice in answer.choices] == ["Hello there, friend!"] * 2
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer._request_id


async def test_streamed_chat_with_usage_and_logprobs(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=NAME, messages=HELLO, stream=True, logprobs=True, top_logprobs=2, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    tokens = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs and choice.logprobs.content
        for entry in choice.logprobs.content
    ]
    assert text == "Hello there, friend!"
    assert [len(entry.top_logprobs) for entry in tokens] == [2] * 5
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_the_stream_helper_rebuilds_the_answer(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.chat.completions.stream(model=NAME, messages=HELLO, n=2) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["Hello there, friend!"] * 2
    assert [choice.finish_reason for choice in final.choices] == ["stop", "stop"]


async def test_completions(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model=NAME, prompt=["a", "b"], logprobs=1, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.text_offset == [0, 5, 11, 19, 20]
    stream = await sdk.completions.create(model=NAME, prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello there, friend!"


async def test_models(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == [NAME]
    assert (await sdk.models.retrieve(NAME)).owned_by == "hexserve"


async def test_the_sdk_knows_our_errors(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    create: Any = sdk.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        await create(model=NAME, messages=HELLO, temperature=3)
    assert (bad.value.code, bad.value.param, bad.value.type) == (
        "decimal_above_max_value",
        "temperature",
        "invalid_request_error",
    )
    assert bad.value.request_id
    with pytest.raises(openai.BadRequestError, match="maximum context length is 100 tokens"):
        await create(model=NAME, messages=[{"role": "user", "content": "x " * 200}])
    with pytest.raises(openai.NotFoundError):
        await create(model="gpt-9", messages=HELLO)
    engine.refusal = Busy("full", BusyReason.REQUESTS, 3)
    with pytest.raises(openai.InternalServerError) as busy:
        await create(model=NAME, messages=HELLO, stream=True)
    assert (busy.value.status_code, busy.value.response.headers["retry-after"]) == (503, "3")


async def test_a_failure_before_the_first_token_has_its_status(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda _: [WorkerDied("died 3 times")]
    for is_stream in (False, True):
        with pytest.raises(openai.InternalServerError) as failure:
            await sdk.chat.completions.create(model=NAME, messages=HELLO, stream=is_stream)
        assert failure.value.status_code == 500


async def test_a_failure_in_the_stream_is_an_error_event(
    sdk: openai.AsyncOpenAI, base_url: str, engine: ScriptedEngine
) -> None:
    engine.script = lambda _: [Delta("Hel", (1,)), StepFailed("it broke")]
    engine.hold(1)
    stream = await sdk.chat.completions.create(model=NAME, messages=HELLO, stream=True)
    parts = stream.__aiter__()
    assert (await anext(parts)).choices[0].delta.role == "assistant"
    assert (await anext(parts)).choices[0].delta.content == "Hel"
    engine.release(1)
    with pytest.raises(openai.APIError, match="it broke"):
        await anext(parts)
    assert not engine.live


async def left(engine: ScriptedEngine, count: int = 1) -> None:
    """Wait until the engine has seen `count` aborts."""
    async with asyncio.timeout(PATIENCE_S):
        while len(engine.aborted) < count:
            engine.abort_seen.clear()
            await engine.abort_seen.wait()


@pytest.mark.parametrize("deltas", [0, 1, 3])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_a_client_that_leaves_its_stream_frees_it(
    base_url: str, engine: ScriptedEngine, deltas: int, path: str
) -> None:
    engine.hold(deltas)
    body = {"model": NAME, "stream": True} | ({"prompt": "x"} if path == "completions" else {"messages": HELLO})
    async with httpx.AsyncClient(base_url=base_url) as client:
        if deltas:
            async with client.stream("POST", f"/v1/{path}", json=body) as answer:
                await anext(answer.aiter_lines())
        else:  # not even the headers have come
            await leave_early(client, path, body, engine)
    await left(engine)
    assert not engine.live


async def test_a_client_that_leaves_a_plain_request_frees_it(base_url: str, engine: ScriptedEngine) -> None:
    engine.hold(2)
    async with httpx.AsyncClient(base_url=base_url) as client:
        await leave_early(client, "chat/completions", {"model": NAME, "messages": HELLO, "n": 3}, engine)
    await left(engine, 3)
    assert not engine.live


async def leave_early(client: httpx.AsyncClient, path: str, body: Any, engine: ScriptedEngine) -> None:
    asking = asyncio.create_task(client.post(f"/v1/{path}", json=body))
    await engine.submit_seen.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_many_leavers_leave_nothing_behind(base_url: str, app: FastAPI, engine: ScriptedEngine) -> None:
    engine.hold(0)
    for _ in range(12):
        async with httpx.AsyncClient(base_url=base_url) as client:
            engine.submit_seen.clear()
            await leave_early(client, "chat/completions", {"model": NAME, "messages": HELLO, "stream": True}, engine)
    await left(engine, 12)
    async with asyncio.timeout(PATIENCE_S):
        assert await app.state.server.in_flight.wait_empty(PATIENCE_S)
    engine.hold(100)
    async with httpx.AsyncClient(base_url=base_url) as client:
        assert (await client.post("/v1/chat/completions", json={"model": NAME, "messages": HELLO})).status_code == 200


class TestSlowServer:
    """Keep-alive comments and time limits."""

    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(EngineConfig("unused"), keep_alive_s=0.05, request_timeout_s=0.4)

    async def test_silence_is_filled_with_comments(self, base_url: str, engine: ScriptedEngine) -> None:
        engine.hold(0)
        body = {"model": NAME, "messages": HELLO, "stream": True}
        lines = []
        async with (
            httpx.AsyncClient(base_url=base_url) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status_code == 200  # the headers came before any token
            async for line in answer.aiter_lines():
                lines.append(line)
                if len(lines) == 2:
                    assert lines == [": keep-alive", ""]
                    engine.release(10)
        assert lines[-2:] == ["data: [DONE]", ""]
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "Hello there, friend!"

    async def test_a_request_that_takes_too_long(self, base_url: str, engine: ScriptedEngine) -> None:
        engine.hold(0)
        async with httpx.AsyncClient(base_url=base_url) as client:
            answer = await client.post("/v1/chat/completions", json={"model": NAME, "messages": HELLO})
            assert answer.status_code == 504
            assert answer.json()["error"]["code"] == "timeout"
            body = {"model": NAME, "messages": HELLO, "stream": True}
            streamed = await client.post("/v1/chat/completions", json=body)
        assert streamed.status_code == 200
        assert json.loads(streamed.text.split("data: ")[-1])["error"]["code"] == "timeout"
        assert len(engine.aborted) == 2

    async def test_half_a_body_does_not_hold_others_up(self, base_url: str, app: FastAPI) -> None:
        app.state.body_limits = replace(app.state.body_limits, timeout_s=0.2)
        host, port = base_url.removeprefix("http://").split(":")
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
        for _, writer in connections:
            writer.write(request_head(99) + b'{"model":')
        async with httpx.AsyncClient(base_url=base_url) as client:
            answer = await client.post("/v1/chat/completions", json={"model": NAME, "messages": HELLO})
            assert answer.status_code == 200
        for reader, writer in connections:
            answer_bytes = await reader.read()  # to the end: the server closes the connection
            assert answer_bytes.startswith(b"HTTP/1.1 408 ")
            assert b'"type":"invalid_request_error"' in answer_bytes
            writer.close()


async def test_a_stalled_reader_holds_nobody_up(base_url: str, engine: ScriptedEngine) -> None:
    host, port = base_url.removeprefix("http://").split(":")
    engine.script = lambda _: [Delta("x" * 100_000, (1,))] * 400
    body = json.dumps({"model": NAME, "messages": HELLO, "stream": True}).encode()
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(request_head(len(body)) + body)
    await reader.readline()
    await engine.submit_seen.wait()
    engine.script = say
    async with httpx.AsyncClient(base_url=base_url) as client:
        answer = await client.post("/v1/chat/completions", json={"model": NAME, "messages": HELLO})
    assert answer.status_code == 200
    assert len(engine.live) == 1  # the stalled one has not been read to its end
    writer.transport.abort()
    await left(engine)
