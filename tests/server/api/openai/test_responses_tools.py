"""Custom tools and namespaces in /v1/responses: how the model is shown them, and what its calls are called again."""

import json
from typing import Any

import httpx
import pytest

from engine.grammar.spec import CalledTool, GrammarSpec, ToolCalls
from tests.server.api.openai.test_responses import TOOL, respond, types
from tests.server.scripted_engine import ScriptedEngine, say

LARK = 'start: "a" LF\n%import common.LF'
CUSTOM = {"type": "custom", "name": "patch", "description": "Patches."}
BY_GRAMMAR = CUSTOM | {"format": {"type": "grammar", "syntax": "lark", "definition": LARK}}
BY_REGEX = CUSTOM | {"format": {"type": "grammar", "syntax": "regex", "definition": "a|b"}}
SPACE = {"type": "namespace", "name": "team", "description": "For agents.", "tools": [TOOL | {"description": "Ends."}]}
INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def called(name: str, arguments: str) -> tuple[str, str]:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}', "</tool_call>"


async def test_a_custom_tool_is_shown_as_a_function_of_one_text(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    answer = await respond(client, tools=[BY_GRAMMAR])
    assert answer["tools"] == [BY_GRAMMAR]
    assert engine.tools[0] is not None
    function = engine.tools[0][0]["function"]
    schema = INPUT | {"additionalProperties": False}
    assert function == {"name": "patch", "description": function["description"], "parameters": schema}
    assert function["description"].startswith("Patches.") and function["description"].endswith(LARK)
    (form, _) = engine.forms[0]
    assert isinstance(form.form, ToolCalls)
    assert form.form.tools == (CalledTool("patch", json.dumps(schema, separators=(",", ":")), is_lenient=False),)


async def test_a_regular_expression_is_enforced(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await respond(client, tools=[BY_REGEX], tool_choice={"type": "custom", "name": "patch"})
    ((form, _),) = engine.forms
    assert isinstance(form, GrammarSpec) and isinstance(form.form, ToolCalls) and form.form.is_forced
    schema = json.loads(form.form.tools[0].parameters or "")
    assert schema["properties"]["input"] == {"type": "string", "pattern": "^(?:a|b)$"}


async def test_a_call_of_a_custom_tool(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, called("patch", '{"input": "a\\n\\"b\\""}'))
    found = await respond(client, stream=True, tools=[CUSTOM])
    assert types(found)[2:-1] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert found[2]["item"]["input"] == "" and found[3]["delta"] == found[4]["input"] == 'a\n"b"'
    (call,) = found[-1]["response"]["output"]
    assert call == found[5]["item"] and (call["type"], call["name"]) == ("custom_tool_call", "patch")
    assert call["input"] == 'a\n"b"' and call["id"].startswith("ctc_")
    whole = await respond(client, tools=[CUSTOM])
    assert whole["output"][0]["input"] == 'a\n"b"'


async def test_a_call_of_a_custom_tool_that_was_cut(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, called("patch", '{"input": "a'))
    found = await respond(client, tools=[CUSTOM], max_output_tokens=1)
    (call,) = found["output"]
    assert (found["status"], call["status"], call["input"]) == ("incomplete", "incomplete", '{"input": "a}')


async def test_a_call_of_a_custom_tool_and_its_result_go_back(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    call = {
        "type": "custom_tool_call",
        "call_id": "c",
        "name": "patch",
        "input": 'a"',
        "id": "x",
        "status": "completed",
    }
    result = {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "fine"}]}
    await respond(client, input=[{"role": "user", "content": "go"}, call, result], tools=[CUSTOM])
    function = {"name": "patch", "arguments": '{"input":"a\\""}'}
    assert engine.chats[0][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "content": "fine", "tool_call_id": "c"},
    ]


async def test_a_tool_of_a_namespace(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, called("team.f", "{}"))
    answer = await respond(client, tools=[TOOL, SPACE])
    assert engine.tools[0] is not None
    assert [tool["function"]["name"] for tool in engine.tools[0]] == ["f", "team.f"]
    assert engine.tools[0][1]["function"]["description"] == "For agents.\n\nEnds."
    (call,) = answer["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "team", "f")
    await respond(client, input=[{"role": "user", "content": "go"}, call], tools=[SPACE])
    assert engine.chats[1][1]["tool_calls"][0]["function"]["name"] == "team.f"


@pytest.mark.parametrize(
    ("tools", "code", "param"),
    [
        ([SPACE | {"tools": []}], "array_below_min_length", "tools[0].tools"),
        ([SPACE | {"tools": [TOOL] * 100}, SPACE | {"tools": [TOOL] * 100}], "array_above_max_length", "tools"),
        ([SPACE | {"tools": [SPACE]}], "unsupported_value", "tools[0].tools[0].type"),
        ([CUSTOM | {"format": {"type": "grammar", "syntax": "gbnf", "definition": ""}}], "unsupported_value", None),
        ([{"type": "local_shell"}], "unsupported_value", "tools[0].type"),
    ],
)
async def test_tools_that_cannot_be(client: httpx.AsyncClient, tools: list[Any], code: str, param: str | None) -> None:
    answer = await client.post("/v1/responses", json={"model": "scripted", "input": "x", "tools": tools})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), answer.text
    assert answer.json()["error"]["param"] == (param or "tools[0].format.syntax")


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
async def test_verbosity_is_told_to_the_template(
    client: httpx.AsyncClient, engine: ScriptedEngine, verbosity: str
) -> None:
    answer = await respond(client, text={"verbosity": verbosity})
    assert answer["text"]["verbosity"] == verbosity and engine.options[0]["verbosity"] == verbosity


async def test_what_codex_sends_of_itself_changes_nothing(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await respond(
        client, client_metadata={"turn": {"id": 1}}, prompt_cache_key="k", include=["reasoning.encrypted_content"]
    )
    assert engine.chats == [[{"role": "user", "content": "say hello please"}]]
