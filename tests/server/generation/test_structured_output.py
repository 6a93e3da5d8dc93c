"""The form of an answer on the wire: which field becomes what, who is told, and who is not kept waiting."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from engine.errors import InvalidRequest
from engine.grammar.spec import CalledTool, Cfg, Choice, Form, GrammarSpec, JsonSchema, Regex, ToolCalls
from tests.call_formats import HERMES
from tests.server.scripted_engine import NAME, ScriptedEngine

HELLO: Any = {"model": NAME, "messages": [{"role": "user", "content": "hello"}]}
CHAT = "/v1/chat/completions"
ANY = JsonSchema('{"type":"object"}')
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}
POINT_TEXT = '{"type":"object","properties":{"x":{"type":"integer"}}}'
TOOLS: Any = [
    {"type": "function", "function": {"name": "f", "parameters": POINT}},
    {"type": "function", "function": {"name": "g", "strict": True}},
]
LOOSE = [TOOLS[0]]
F, G = CalledTool("f", POINT_TEXT), CalledTool("g", None, is_lenient=False)


def named(**fields: Any) -> Any:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "point", **fields}}}


def calls(*tools: CalledTool, is_forced: bool = True, most: int = 0, otherwise: Any = None) -> ToolCalls:
    return ToolCalls(HERMES, tools, is_forced, most, otherwise, "<tool_call>")


ROWS: list[tuple[Any, Form, str]] = [
    ({"response_format": {"type": "json_object"}}, ANY, "response_format"),
    (named(schema=POINT, strict=True), JsonSchema(POINT_TEXT), "response_format.json_schema.schema"),
    (named(schema=POINT), JsonSchema(POINT_TEXT, is_lenient=True), "response_format.json_schema.schema"),
    (named(strict=True), ANY, "response_format.json_schema.schema"),
    ({"structured_outputs": {"json": POINT}}, JsonSchema(POINT_TEXT), "structured_outputs.json"),
    ({"structured_outputs": {"json": POINT_TEXT}}, JsonSchema(POINT_TEXT), "structured_outputs.json"),
    (
        {"structured_outputs": {"json": POINT_TEXT, "disable_any_whitespace": True}},
        JsonSchema(POINT_TEXT, whitespace=""),
        "structured_outputs.json",
    ),
    (
        {"structured_outputs": {"json_object": True, "whitespace_pattern": " ?"}},
        JsonSchema(ANY.schema, whitespace=" ?"),
        "structured_outputs.json_object",
    ),
    ({"structured_outputs": {"regex": "a+"}}, Regex("a+"), "structured_outputs.regex"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Choice(("a", "b")), "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "start: A"}}, Cfg("start: A"), "structured_outputs.grammar"),
    ({"guided_json": POINT}, JsonSchema(POINT_TEXT), "guided_json"),
    ({"guided_regex": "a+"}, Regex("a+"), "guided_regex"),
    ({"guided_choice": ["a", "b"]}, Choice(("a", "b")), "guided_choice"),
    ({"guided_grammar": "start: A"}, Cfg("start: A"), "guided_grammar"),
    ({"tools": TOOLS, "tool_choice": "required"}, calls(F, G), "tools"),
    ({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, calls(F, G, most=1), "tools"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, calls(G, most=1), "tools"),
    ({"tools": TOOLS}, calls(F, G, is_forced=False), "tools"),
    ({"tools": LOOSE, "parallel_tool_calls": False}, calls(F, is_forced=False, most=1), "tools"),
    ({"tools": LOOSE, "guided_regex": "a"}, calls(F, is_forced=False, otherwise=Regex("a")), "guided_regex"),
    ({"tools": LOOSE, "tool_choice": "none", "guided_regex": "a"}, Regex("a"), "guided_regex"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: json.dumps(row[0])[:60])
async def test_what_each_field_asks(
    client: httpx.AsyncClient, engine: ScriptedEngine, row: tuple[Any, Form, str]
) -> None:
    fields, form, param = row
    answer = await client.post(CHAT, json=HELLO | fields | {"n": 2})
    assert answer.status_code == 200, answer.text
    assert engine.forms == [(GrammarSpec(form), param)]
    assert [request.params.grammar for request, *_ in engine.submitted] == ["a grammar"] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"tools": LOOSE},
        {"tools": LOOSE, "parallel_tool_calls": True},
        {"tools": TOOLS, "tool_choice": "none"},
    ],
)
async def test_nothing_to_enforce(client: httpx.AsyncClient, engine: ScriptedEngine, fields: Any) -> None:
    assert (await client.post(CHAT, json=HELLO | fields)).status_code == 200
    assert engine.forms == []
    assert engine.submitted[0][0].params.grammar is None


async def test_completions_take_the_same_fields(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    body = {"model": NAME, "prompt": ["a", "b"], "response_format": {"type": "json_object"}}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert engine.forms == [(GrammarSpec(ANY), "response_format")]
    assert [request.params.grammar for request, *_ in engine.submitted] == ["a grammar"] * 2


async def test_one_form_at_a_time(client: httpx.AsyncClient) -> None:
    fields = {"guided_regex": "a", "response_format": {"type": "json_object"}}
    error = (await client.post(CHAT, json=HELLO | fields)).json()["error"]
    assert error["message"] == "Give 'response_format' or 'guided_regex', not both."
    assert error["param"] == "guided_regex"


async def test_what_cannot_be_compiled_is_a_400_that_names_the_field(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    async def refuse(spec: GrammarSpec, param: str) -> str:
        raise InvalidRequest(f"Invalid '{param}': no.", param, "invalid_value")

    engine.compile_grammar = refuse  # type: ignore[method-assign]
    for is_stream in (False, True):
        answer = await client.post(CHAT, json=HELLO | {"guided_regex": "(", "stream": is_stream})
        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": "Invalid 'guided_regex': no.",
            "type": "invalid_request_error",
            "param": "guided_regex",
            "code": "invalid_value",
        }
    assert engine.submitted == []


async def test_a_neighbour_is_answered_while_a_hostile_form_is_compiled(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    begun, finished = asyncio.Event(), asyncio.Event()

    async def compile_grammar(spec: GrammarSpec, param: str) -> str:
        if isinstance(spec.form, JsonSchema) and len(spec.form.schema) > 10_000:
            begun.set()
            await finished.wait()
        return "a grammar"

    engine.compile_grammar = compile_grammar  # type: ignore[method-assign]
    hostile = {"guided_json": {"enum": [f"v{number}" for number in range(2_000)]}}
    slow = asyncio.create_task(client.post(CHAT, json=HELLO | hostile))
    await begun.wait()
    for fields in ({}, {"guided_regex": "^(a+)+$"}):
        assert (await client.post(CHAT, json=HELLO | fields)).status_code == 200
    assert not slow.done()
    finished.set()
    assert (await slow).status_code == 200


async def test_a_form_begins_behind_the_reasoning(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    for engine.prompt_end in (b"", b"<think>\n", b"<think>\n\n</think>\n\n"):
        await client.post(CHAT, json=HELLO | {"guided_regex": "a"})
    assert [spec for spec, _ in engine.forms] == [
        GrammarSpec(Regex("a"), "</think>", "<think>"),
        GrammarSpec(Regex("a"), "</think>"),
        GrammarSpec(Regex("a")),
    ]


async def test_a_large_grammar_for_many_choices_is_refused(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    async def compile_grammar(spec: GrammarSpec, param: str) -> str:
        return "x" * 5_000_000

    engine.compile_grammar = compile_grammar  # type: ignore[method-assign]
    assert (await client.post(CHAT, json=HELLO | {"guided_regex": "a", "n": 3})).status_code == 200
    answer = await client.post(CHAT, json=HELLO | {"guided_regex": "a", "n": 4})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert len(engine.submitted) == 3
