"""Every parameter of every route alone and with all that an answer can have; a field that is in no table fails."""

import json
from typing import Any

import httpx
import pytest

from server.api.openai.chat import ChatChunk, ChatCompletion
from server.api.openai.completions import Completion, CompletionRequest
from server.api.openai.response_answer import ResponseAnswer, ResponseEvent
from server.api.openai.response_request import ResponsesRequest
from server.generation.chat_request import ChatRequest
from server.generation.params import FIELDS  # tests/server/generation/test_denoising.py
from server.http.fields import NotYet
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine

SHARED: dict[str, Any] = {
    "max_tokens": 3,
    "n": 2,
    "stop": ["zzz", "yyy"],
    "temperature": 2,
    "top_p": 0.5,
    "seed": 7,
    "frequency_penalty": 2,
    "presence_penalty": -2,
    "logit_bias": {"5": -100, "7": 100},
    "user": "me",
    "top_k": 4,
    "min_p": 0.2,
    "repetition_penalty": 1.2,
    "stop_token_ids": [9],
    "ignore_eos": True,
    "min_tokens": 2,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "priority": 3,
    "truncate_prompt_tokens": 1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True}},
    "structured_outputs": {"json_object": True, "disable_any_whitespace": True},
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "guided_choice": ["a", "b"],
    "guided_grammar": "start: A",
}
FORMS = {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CHAT = SHARED | {
    "max_completion_tokens": 3,
    "tools": TOOLS,
    "prediction": {"type": "content", "content": "Hello there"},
    "modalities": ["text"],
    "reasoning_effort": "low",
    "thinking_token_budget": 2,
    "chat_template_kwargs": {"enable_thinking": True},
    "add_generation_prompt": True,
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "flex",
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "verbosity": "medium",
}
TEXT = SHARED | {"echo": True, "best_of": 2}
RESPONSES: dict[str, Any] = {
    **{key: CHAT[key] for key in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "metadata", "user")},
    **{key: CHAT[key] for key in ("top_k", "min_p", "repetition_penalty", "seed", "priority", "service_tier")},
    **{key: CHAT[key] for key in ("thinking_token_budget", "chat_template_kwargs", "safety_identifier")},
    "prompt_cache_key": "x",
    "instructions": "be brief",
    "max_output_tokens": 3,
    "max_tool_calls": 1,
    "tools": [{"type": "function", "name": "f", "strict": False}],
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "truncation": "disabled",
    "store": False,
    "background": False,
    "client_metadata": {"a": "b"},
}
# Fields that are the modes themselves, need another field, or have one value that changes nothing.
ELSEWHERE = {
    "model",
    "messages",
    "prompt",
    "prompt_embeds",
    "input",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "include",
    "previous_response_id",
}
DEPENDENT = {"tool_choice", "parallel_tool_calls", "continue_final_message", "add_special_tokens"}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole": {"n": 3, "logprobs": True, "top_logprobs": 2, "guided_choice": ["a", "b"]},
    "all": {
        "stream": True,
        "n": 3,
        "logprobs": True,
        "top_logprobs": 20,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
}
RESPONSES_MODES: dict[str, dict[str, Any]] = {
    "whole": {"top_logprobs": 2},
    "all": {"stream": True, "top_logprobs": 20, "include": ["message.output_text.logprobs"]},
}


@pytest.mark.parametrize(
    ("body", "table"), [(ChatRequest, CHAT), (CompletionRequest, TEXT), (ResponsesRequest, RESPONSES)]
)
def test_no_field_is_forgotten(body: Any, table: dict[str, Any]) -> None:
    honoured = {name for name, field in body.model_fields.items() if field.annotation not in (NotYet, type(None))}
    known = (
        ELSEWHERE | DEPENDENT | set(FIELDS) | ({"echo"} if body is ChatRequest else set())
    )  # a chat takes only "echo": false
    assert honoured - known == set(table)


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """The answer, or the events of the stream."""
    answer = await client.post(path, json={"model": NAME} | body)
    assert answer.status_code == 200, (body, answer.text)
    if not body.get("stream"):
        return [answer.json()]
    lines = [line for line in answer.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def mode_fields(name: str, mode: str) -> dict[str, Any]:
    """One form at a time: two are refused."""
    return {key: value for key, value in MODES[mode].items() if not (name in FORMS and key in FORMS)}


@pytest.mark.parametrize("mode", [*MODES, "tools"])
@pytest.mark.parametrize("name", CHAT)
async def test_chat(client: httpx.AsyncClient, engine: ScriptedEngine, name: str, mode: str) -> None:
    engine.think()
    body = {"messages": [{"role": "user", "content": "one two"}], name: CHAT[name]}
    body |= {"tools": TOOLS, "tool_choice": "required"} if mode == "tools" else mode_fields(name, mode)
    parts = await post(client, "/v1/chat/completions", body)
    shape = ChatChunk if body.get("stream") else ChatCompletion
    for part in parts:
        check_answer(shape, part)
    finishes = [c["finish_reason"] for part in parts for c in part["choices"] if c["finish_reason"]]
    assert len(finishes) == body.get("n", 1) == len(engine.submitted)
    has_form = name in FORMS or mode in ("whole", "tools")
    assert {request.params.grammar is not None for request, *_ in engine.submitted} == {has_form}
    if body.get("logprobs"):
        entries = [e for p in parts for c in p["choices"] if c["logprobs"] for e in c["logprobs"]["content"]]
        cut = min(body.get("max_tokens", 5), body.get("max_completion_tokens", 5))
        assert len(entries) == cut * body.get("n", 1)
    assert not engine.live


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TEXT)
async def test_completions(client: httpx.AsyncClient, engine: ScriptedEngine, name: str, mode: str) -> None:
    fields = {key: value for key, value in mode_fields(name, mode).items() if key != "top_logprobs"}
    if "logprobs" in fields:
        fields["logprobs"] = 2
    body = {"prompt": ["one two", "three"], name: TEXT[name]} | fields
    if name == "best_of":
        body["best_of"] = body.get("n", 1) + (not body.get("stream"))
    parts = await post(client, "/v1/completions", body)
    for part in parts:
        check_answer(Completion, part)
    finishes = [c["finish_reason"] for part in parts for c in part["choices"] if c["finish_reason"]]
    assert len(finishes) == 2 * body.get("n", 1)
    assert not engine.live


@pytest.mark.parametrize("mode", RESPONSES_MODES)
@pytest.mark.parametrize("name", RESPONSES)
async def test_responses(client: httpx.AsyncClient, engine: ScriptedEngine, name: str, mode: str) -> None:
    engine.think()
    body = {"input": "one two", name: RESPONSES[name]} | RESPONSES_MODES[mode]
    parts = await post(client, "/v1/responses", body)
    if body.get("stream"):
        for part in parts:
            check_answer(ResponseEvent, part)
        parts = [parts[-1]["response"]]
    check_answer(ResponseAnswer, parts[0])
    assert parts[0]["status"] == ("incomplete" if "max_output_tokens" in body else "completed")
    assert not engine.live


@pytest.mark.parametrize(
    ("fields", "top_k", "top_p"),
    [({}, 0, 1.0), ({"top_k": -1}, 0, 1.0), ({"top_k": 0}, 0, 1.0), ({"top_k": 7}, 7, 1.0), ({"top_p": 0}, 1, 1.0)],
)
async def test_every_spelling_of_no_top_k_is_off(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], top_k: int, top_p: float
) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "hello"}]} | fields
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    params = engine.submitted[-1][0].params
    assert (params.top_k, params.top_p) == (top_k, top_p)
