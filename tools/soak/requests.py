"""The kinds of requests of a soak, each with the check that its answer is whole."""

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import httpx

QUESTIONS = tuple(f"What is the capital of {name}?" for name in ("France", "Peru", "Japan", "Italy", "Spain", "Egypt"))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
TOKENS = 24


class Lost(Exception):
    """An answer that did not come, or not whole."""


class Asker:
    """Asks one server. `learn` first notes the greedy answer of every question, asked alone."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.model = ""
        self.known: dict[str, str] = {}

    async def learn(self) -> None:
        """The model's name and the texts that later answers are compared with."""
        self.model = (await self.client.get("/v1/models")).json()["data"][0]["id"]
        for question in QUESTIONS:
            answer = await self.post("/v1/chat/completions", self.chat(question))
            self.known[question] = answer["choices"][0]["message"]["content"]

    def chat(self, question: str, **more: Any) -> dict[str, Any]:
        """A greedy chat request."""
        messages = [{"role": "user", "content": question}]
        return {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": TOKENS, **more}

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of a request that must succeed."""
        answer = await self.client.post(path, json=body)
        require(answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}")
        return dict(answer.json())

    async def refused(self, path: str, content: bytes, *statuses: int) -> None:
        """A request that must be refused with one of these statuses and OpenAI's error body."""
        answer = await self.client.post(path, content=content, headers={"Content-Type": "application/json"})
        require(answer.status_code in statuses, f"{answer.status_code} instead of {statuses}")
        require(bool(answer.json()["error"]["message"]), "a refusal without a message")


def require(holds: bool, otherwise: str) -> None:
    """Lost unless it holds."""
    if not holds:
        raise Lost(otherwise)


async def stream(asker: Asker, drawn: random.Random) -> None:
    """A streamed chat has the text that the question has alone, and its end."""
    question = drawn.choice(QUESTIONS)
    text, ended = "", False
    async with asker.client.stream("POST", "/v1/chat/completions", json=asker.chat(question, stream=True)) as answer:
        require(answer.status_code == 200, str(answer.status_code))
        async for line in answer.aiter_lines():
            ended = ended or line == "data: [DONE]"
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                require("error" not in chunk, line)
                text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    require(ended, "a stream without [DONE]")
    require(text == asker.known[question], f"{text!r} instead of {asker.known[question]!r}")


async def cut(asker: Asker, drawn: random.Random) -> None:
    """A client that leaves in the middle."""
    body = asker.chat(drawn.choice(QUESTIONS), stream=True, ignore_eos=True, max_tokens=200)
    left = drawn.randrange(0, 12)
    async with asker.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            left -= 1
            if left < 0:
                return


async def structured(asker: Asker, drawn: random.Random) -> None:
    """An object of the schema, unless max_tokens cut it and the answer says so."""
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    body = asker.chat("Give me a person.", response_format=form, max_tokens=64, temperature=drawn.choice((0, 1, 1.5)))
    choice = (await asker.post("/v1/chat/completions", {**body, "seed": drawn.randrange(1000)}))["choices"][0]
    if choice["finish_reason"] == "stop":
        found = json.loads(choice["message"]["content"])
        require(set(found) == {"name", "age"} and isinstance(found["age"], int), str(found))


async def tools(asker: Asker, drawn: random.Random) -> None:
    """A forced call has arguments of its schema."""
    body = asker.chat("What is the weather?", tools=[TOOL], tool_choice="required", max_tokens=96)
    choice = (await asker.post("/v1/chat/completions", {**body, "seed": drawn.randrange(1000)}))["choices"][0]
    if choice["finish_reason"] == "tool_calls":
        require(set(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])) == {"name", "age"}, "call")


async def choices(asker: Asker, drawn: random.Random) -> None:
    """n greedy choices are n times the same text."""
    question = drawn.choice(QUESTIONS)
    answer = await asker.post("/v1/chat/completions", asker.chat(question, n=drawn.randrange(2, 5)))
    texts = {choice["message"]["content"] for choice in answer["choices"]}
    require(texts == {asker.known[question]}, f"{texts} instead of {asker.known[question]!r}")


async def response(asker: Asker, drawn: random.Random) -> None:
    """/v1/responses, streamed to its last event."""
    body = {"model": asker.model, "input": drawn.choice(QUESTIONS), "max_output_tokens": TOKENS, "stream": True}
    last = ""
    async with asker.client.stream("POST", "/v1/responses", json={**body, "store": False}) as answer:
        require(answer.status_code == 200, str(answer.status_code))
        async for line in answer.aiter_lines():
            last = line.removeprefix("event: ") if line.startswith("event: ") else last
    require(last in ("response.completed", "response.incomplete"), f"the last event is {last!r}")


async def scored(asker: Asker, drawn: random.Random) -> None:
    """A completion with its prompt's log-probabilities: one for each token."""
    body = {"model": asker.model, "prompt": drawn.choice(QUESTIONS), "max_tokens": 4, "echo": True, "logprobs": 2}
    found = (await asker.post("/v1/completions", body))["choices"][0]["logprobs"]
    require(len(found["tokens"]) == len(found["token_logprobs"]), "lists of different lengths")


async def upload(asker: Asker, drawn: random.Random) -> None:
    """Bodies above a bound: the server's in bytes, the model's in tokens."""
    size = drawn.choice((100_000, 400_000))
    body = json.dumps(asker.chat("a" * size)).encode()
    await asker.refused("/v1/chat/completions", body, 400, 413)


async def wrong(asker: Asker, drawn: random.Random) -> None:
    """Mistakes of a client."""
    other = json.dumps({"model": "x", "messages": []}).encode()
    body = drawn.choice((b"{", b'{"model": 1}', b'{"messages": []}', other))
    await asker.refused("/v1/chat/completions", body, 400, 404)


@dataclass(frozen=True, slots=True)
class Kind:
    """How to ask, and how often among all."""

    ask: Callable[[Asker, random.Random], Awaitable[None]]
    weight: int


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "streams": Kind(stream, 30),
        "cut streams": Kind(cut, 20),
        "structured": Kind(structured, 12),
        "tools": Kind(tools, 8),
        "choices": Kind(choices, 8),
        "responses": Kind(response, 8),
        "scored": Kind(scored, 6),
        "uploads": Kind(upload, 4),
        "wrong": Kind(wrong, 4),
    }
)
