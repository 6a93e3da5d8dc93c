"""The form of an answer in /v1/responses: what each field asks, what is echoed, and how refusals name the field."""

from typing import Any

import httpx
import pytest

from engine.errors import InvalidRequest
from engine.grammar.spec import CalledTool, Form, GrammarSpec, JsonSchema, ToolCalls
from server.api.openai.response_answer import ResponseAnswer
from server.api.openai.response_input import own_name
from tests.call_formats import HERMES
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine

PATH = "/v1/responses"
HELLO: dict[str, Any] = {"model": NAME, "input": "say hello please"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"x":{"type":"integer"}}}'
STRICT, LOOSE = ({"type": "function", "name": name, "parameters": SCHEMA, "strict": name == "f"} for name in "fg")
F, G = CalledTool("f", SCHEMA_TEXT, is_lenient=False), CalledTool("g", SCHEMA_TEXT)


def text(**form: Any) -> dict[str, Any]:
    return {"text": {"format": form}}


def calls(*tools: CalledTool, is_forced: bool = True, most: int = 0) -> ToolCalls:
    return ToolCalls(HERMES, tools, is_forced, most, mark="<tool_call>")


ROWS: list[tuple[dict[str, Any], Form, str]] = [
    (text(type="json_object"), JsonSchema('{"type":"object"}'), "text.format"),
    (text(type="json_schema", name="p", schema=SCHEMA), JsonSchema(SCHEMA_TEXT, is_lenient=True), "text.format.schema"),
    (text(type="json_schema", name="p", schema=SCHEMA, strict=True), JsonSchema(SCHEMA_TEXT), "text.format.schema"),
    ({"tools": [STRICT, LOOSE]}, calls(F, G, is_forced=False), "tools"),
    ({"tools": [LOOSE], "parallel_tool_calls": False}, calls(G, is_forced=False, most=1), "tools"),
    ({"tools": [STRICT, LOOSE], "tool_choice": "required"}, calls(F, G), "tools"),
    ({"tools": [STRICT, LOOSE], "tool_choice": {"type": "function", "name": "g"}}, calls(G, most=1), "tools"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0])[:60])
async def test_what_each_field_asks(
    client: httpx.AsyncClient, engine: ScriptedEngine, row: tuple[dict[str, Any], Form, str]
) -> None:
    fields, form, param = row
    answer = await client.post(PATH, json=HELLO | fields)
    assert answer.status_code == 200, answer.text
    assert [(spec, own_name(name)) for spec, name in engine.forms] == [(GrammarSpec(form), param)]
    assert engine.submitted[0][0].params.grammar == "a grammar"
    said = answer.json()
    check_answer(ResponseAnswer, said)
    for key in ("tool_choice", "parallel_tool_calls"):
        assert said[key] == fields.get(key, {"tool_choice": "auto"}.get(key, True))
    if "text" in fields:
        assert said["text"]["format"].items() >= fields["text"]["format"].items()


@pytest.mark.parametrize(
    "fields", [{}, text(type="text"), {"tools": [LOOSE]}, {"tools": [STRICT], "tool_choice": "none"}]
)
async def test_nothing_to_enforce(client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any]) -> None:
    assert (await client.post(PATH, json=HELLO | fields)).status_code == 200
    assert engine.forms == []


async def test_what_cannot_be_compiled_names_the_field_of_this_route(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    async def refuse(spec: GrammarSpec, param: str) -> str:
        raise InvalidRequest(f"Invalid '{param}': no", param, "invalid_value")

    engine.compile_grammar = refuse  # type: ignore[method-assign]
    form = text(type="json_schema", name="p", schema={"type": "what"})
    answer = await client.post(PATH, json=HELLO | form)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format.schema")
    assert answer.json()["error"]["message"] == "Invalid 'text.format.schema': no"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [LOOSE], "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice.name"),
        ({"tools": [LOOSE], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [LOOSE], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": []}, "tool_choice"),
        (text(type="xml"), "text.format.type"),
        (text(type="json_schema", name="p"), "text.format.schema"),
        (text(type="json_schema", name="a b", schema={}), "text.format.name"),
    ],
)
async def test_refusals_name_the_field(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], param: str
) -> None:
    answer = await client.post(PATH, json=HELLO | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert not engine.submitted
