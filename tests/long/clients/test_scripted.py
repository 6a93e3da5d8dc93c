"""The scripted runtime obeys: what it is told, what a grammar allows, and to the end."""

import json
from typing import Any

import httpx
import jsonschema
import pytest

from tests.clients.servers import KEY, SCRIPTED_MODEL, Servers

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
}
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": PLACE}} for name in ("weather", "clock")]


def said(servers: Servers, text: str, kind: str = "scripted", **more: Any) -> dict[str, Any]:
    body = {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 300, **more}
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{servers(kind).url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    assert choice["finish_reason"] != "length"
    return choice["message"]  # type: ignore[no-any-return]


def called(message: dict[str, Any]) -> list[tuple[str, Any]]:
    assert message["content"] is None
    functions = [call["function"] for call in message["tool_calls"]]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


@pytest.mark.parametrize("temperature", [0, 2])
def test_it_echoes(servers: Servers, temperature: float) -> None:
    assert said(servers, "Good day, नमस्ते 👩\u200d🚀", temperature=temperature)["content"] == "Good day, नमस्ते 👩\u200d🚀"


def test_it_answers_what_the_system_message_says(servers: Servers) -> None:
    system = {"role": "system", "content": 'answers: {"Hello?": "Good\\nday"}\nnothing else'}
    for text, answer in (("Hello?", "Good\nday"), ("Hello!", "Hello!")):
        asked = [system, {"role": "user", "content": text}]
        assert said(servers, "", messages=asked)["content"] == answer


@pytest.mark.parametrize("kind", ["scripted", "mistral", "phi", "llama", "coder", "thinks"])
def test_it_calls_tools_in_every_format(servers: Servers, kind: str) -> None:
    paris = {"city": "Paris", "days": 3}
    ask = "How is the weather in Paris for 3 days?"
    assert called(said(servers, ask, kind, tools=TOOLS)) == [("weather", paris)]
    both = called(said(servers, "the clock and the weather in Paris for 3 days", kind, tools=TOOLS))
    assert [name for name, _ in both] == ["clock", "weather"]
    named = {"type": "function", "function": {"name": "clock"}}
    [(name, arguments)] = called(said(servers, ask, kind, tools=TOOLS, tool_choice=named))
    assert name == "clock"
    jsonschema.validate(arguments, PLACE)
    assert said(servers, "say: no", kind, tools=TOOLS)["content"] == "no"


def test_any_json_object_has_the_keys_that_are_quoted(servers: Servers) -> None:
    ask = "A joke as JSON with the keys 'setup' and 'punchline', nothing else"
    content = said(servers, ask, response_format={"type": "json_object"})["content"]
    assert json.loads(content) == {"setup": "", "punchline": ""}


def test_lines_direct_it(servers: Servers) -> None:
    ask = 'call: clock {"days": 2, "city": "Oslo"}\ncall: weather {"city": "Rome", "days": 1}'
    oslo, rome = {"city": "Oslo", "days": 2}, {"city": "Rome", "days": 1}
    assert called(said(servers, ask, tools=TOOLS)) == [("clock", oslo), ("weather", rome)]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 4},
        {"type": "string", "format": "email"},
        {"type": "string", "format": "date-time"},
        {"type": "array", "items": {"type": "integer", "minimum": 10}, "minItems": 3},
        {"type": "object", "additionalProperties": {"type": "number"}, "minProperties": 0},
        {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}]},
    ],
    ids=["string", "email", "time", "array", "open", "recursive"],
)
def test_it_comes_to_the_end_of_any_schema(servers: Servers, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    content = said(servers, "hello", response_format=form)["content"]
    jsonschema.validate(json.loads(content), schema)
    assert len(content) < 60
