"""A server whose answers are written in the test: what it does to the n-th chat is the n-th entry of its script."""

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

WORDS = ("Paris", " is", " a", " city.")
PROMPT_TOKENS_OF_TEMPLATE = 5


@dataclass
class Script:
    """Behaviours: ok, busy (503), limited (429), broken (500), midstream (an error event after two words),
    cut (the connection ends after two words), mute (no usage), odd (an event that is no JSON), hang (says no more
    after two words; `left` is set when the client goes).

    `then` follows when `behaviours` are used up. `knows_ignore_eos`: otherwise the field is refused with 400.
    """

    behaviours: Sequence[str] = ()
    then: str = "ok"
    knows_ignore_eos: bool = True
    has_metrics: bool = True
    tells_tokens_by: str = ""  # the field that has each chunk tell the tokens so far
    api_key: str = ""
    retry_after: str = "1"
    words: Sequence[str] = WORDS
    thoughts: Sequence[str] = ()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)


def chunk(**fields: Any) -> bytes:
    document = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return b"data: " + json.dumps(document | {"usage": None} | fields).encode() + b"\n\n"


def delta(text: str = "", finish_reason: str | None = None, **fields: Any) -> bytes:
    content = {"content": text} if text else {}
    return chunk(choices=[{"index": 0, "delta": content, "finish_reason": finish_reason}], **fields)


def told(script: Script, tokens: int, body: dict[str, Any]) -> dict[str, Any]:
    """How many tokens have come, two for each word, where the request asks for it."""
    if not script.tells_tokens_by or script.tells_tokens_by not in body | body["stream_options"]:
        return {}
    if script.tells_tokens_by == "timings_per_token":
        return {"timings": {"predicted_n": 2 * tokens}}
    return {"usage": {"prompt_tokens": 1, "completion_tokens": 2 * tokens, "total_tokens": 1 + 2 * tokens}}


def prompt_tokens(body: dict[str, Any]) -> int:
    if "prompt" in body:
        return len(body["prompt"])
    return PROMPT_TOKENS_OF_TEMPLATE + 2 * sum(len(message["content"].split()) for message in body["messages"])


async def frames(script: Script, behaviour: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    for thought in script.thoughts:
        yield chunk(choices=[{"index": 0, "delta": {"reasoning_content": thought}, "finish_reason": None}])
    for number, word in enumerate(script.words):
        if number == 2 and behaviour == "midstream":
            yield b'data: {"error":{"message":"the engine broke","type":"server_error","param":null,"code":null}}\n\n'
            return
        if number == 2 and behaviour == "odd":
            yield b"data: {this is no chunk\n\n"
        if number == 2 and behaviour == "cut":
            raise ConnectionAbortedError
        if number == 2 and behaviour == "hang":
            script.left.clear()
            try:
                await anyio.sleep_forever()
            finally:
                script.left.set()
        yield delta(word, **told(script, number + 1, body))
    yield b": keep-alive\n\n" + delta(finish_reason="stop")
    if behaviour != "mute":
        prompt, completion = prompt_tokens(body), len(script.words) + 1
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        yield chunk(choices=[], usage=usage | {"prompt_tokens_details": {"cached_tokens": 3}})
    yield b"data: [DONE]\n\n"


def refusal(status: int, message: str, retry_after: str = "") -> Response:
    body = {"error": {"message": message, "type": "server_error", "param": None, "code": None}}
    return JSONResponse(body, status, {"Retry-After": retry_after} if retry_after else None)


def scripted_app(script: Script) -> Starlette:
    async def chat(request: Request) -> Response:
        if script.api_key and request.headers.get("authorization") != f"Bearer {script.api_key}":
            return refusal(401, "no key")
        body = await request.json()
        if "ignore_eos" in body and not script.knows_ignore_eos:
            return refusal(400, "unknown field ignore_eos")
        number = len(script.bodies)
        script.bodies.append(body)
        behaviour = script.behaviours[number] if number < len(script.behaviours) else script.then
        status = {"busy": 503, "limited": 429, "broken": 500}.get(behaviour)
        if status is not None:
            return refusal(status, f"answer {status}", script.retry_after if status in (429, 503) else "")
        if not body.get("stream"):
            message = {"role": "assistant", "content": "".join(script.words)}
            return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        return StreamingResponse(frames(script, behaviour, body), media_type="text/event-stream")

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(metrics_text(len(script.bodies))) if script.has_metrics else refusal(404, "none")

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            *(Route(f"/v1/{path}", chat, methods=["POST"]) for path in ("chat/completions", "completions")),
            Route("/v1/models", models),
            Route("/metrics", metrics),
            *(Route(path, live) for path in ("/health", "/health/ready", "/health/live")),
        ]
    )


def metrics_text(requests: int) -> str:
    """Per request: 10 passes, 40 useful rows (30 decode) of 80 run, 0.9 of 1 s in the graph, 3 of 20 tokens cached.

    Of the rows that decode 10 are guesses, 5 of them right.
    The stages of the steps are 5 % plan, 90 % graph (layers and head), 5 % sample.
    """
    label = '{model_name="scripted"}'
    values = {
        "hexserve:steps_total": 10 * requests,
        "hexserve:rows_used_total": 40 * requests,
        "hexserve:rows_run_total": 80 * requests,
        "hexserve:decode_rows_total": 30 * requests,
        "hexserve:prefill_rows_total": 10 * requests,
        "hexserve:drafted_rows_total": 10 * requests,
        "hexserve:accepted_rows_total": 5 * requests,
        "hexserve:run_seconds_total": 0.9 * requests,
        "hexserve:step_seconds_total": 1.0 * requests,
        "vllm:prefix_cache_queries_total": 20 * requests,
        "vllm:prefix_cache_hits_total": 3 * requests,
        "vllm:num_preemptions_total": 0,
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
    }
    stages = {"plan": 0.05, "graph": 0.9, "graph: layers": 0.8, "graph: head": 0.1, "sample": 0.05}
    return "".join(f"{name}{label} {value}\n" for name, value in values.items()) + "".join(
        f'hexserve:stage_seconds_total{{model_name="scripted",stage="{stage}"}} {seconds * requests}\n'
        for stage, seconds in stages.items()
    )


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Run the script on a free loopback port in a thread; yields the address."""
    config = uvicorn.Config(scripted_app(script), log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    # asyncio sets TCP_NODELAY only where the socket says it is TCP; without it each answer waits 40 ms for an ACK.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
