"""The responses route: items, events in their order, and openai-python as the judge."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from engine.bundle.specs import UsualSampling
from engine.errors import StepFailed
from engine.request import Delta, FinishReason, ThinkingBudget
from server.api.openai.response_answer import ResponseAnswer, ResponseEvent
from tests.server.answers import check_answer
from tests.server.scripted_engine import END_ID, NAME, ScriptedEngine, logprob, say, timings

PATH = "/v1/responses"
HELLO: dict[str, Any] = {"model": NAME, "input": "say hello please"}
KEYS = {
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "user",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL = ('<tool_call>{"name": "f", "arguments": {"x": 1}}', "</tool_call>")
THOUGHTS = ("<think>", "Hm", ", ok.", "</think>", "\n\nHi", " there")


async def respond(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await client.post(PATH, json=HELLO | fields)
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return events(answer.text)
    check_answer(ResponseAnswer, answer.json())
    assert set(answer.json()) == KEYS and len(KEYS) == 32
    return answer.json()


def events(text: str) -> list[Any]:
    """Every event; its name is its type and its number the next one."""
    frames = text.split("\n\n")
    assert frames[-1] == ""
    found = []
    for number, frame in enumerate(frames[:-1]):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        check_answer(ResponseEvent, event)
        assert name == f"event: {event['type']}" and event["sequence_number"] == number
        found.append(event)
    return found


def types(found: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in found]


async def test_a_whole_answer(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    answer = await respond(client, metadata={"a": "b"}, instructions="be brief", temperature=0.5)
    (item,) = answer["output"]
    assert item == {
        "id": item["id"],
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello there, friend!", "annotations": [], "logprobs": []}],
    }
    assert item["id"].startswith("msg_") and answer["id"].startswith("resp_")
    assert (answer["status"], answer["store"], answer["metadata"]) == ("completed", False, {"a": "b"})
    assert answer["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10,
    }
    assert engine.chats[0] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "say hello please"},
    ]
    assert engine.submitted[0][0].params.temperature == 0.5


async def test_the_order_of_a_text(client: httpx.AsyncClient) -> None:
    found = await respond(client, stream=True)
    assert types(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert found[0]["response"]["output"] == [] and found[0]["response"]["status"] == "in_progress"
    assert found[2]["item"]["content"] == []
    assert {event["item_id"] for event in found[3:10]} == {found[2]["item"]["id"]}
    assert "".join(event["delta"] for event in found[4:8]) == found[8]["text"] == "Hello there, friend!"
    final = found[-1]["response"]
    assert set(final) == KEYS and final["output"] == [found[10]["item"]]
    assert final["completed_at"] >= final["created_at"]


async def test_a_cut_answer_is_incomplete(client: httpx.AsyncClient) -> None:
    found = await respond(client, stream=True, max_output_tokens=2)
    assert types(found)[-1] == "incomplete"
    assert found[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert found[-2]["item"]["status"] == "incomplete"
    whole = await respond(client, max_output_tokens=2)
    assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")


async def test_reasoning_and_calls_are_items(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    engine.script = lambda request: say(request, (*THOUGHTS, "\n", *CALL, *CALL))
    found = await respond(client, stream=True, tools=[TOOL], reasoning={"effort": "high"}, thinking_token_budget=9)
    assert types(found)[2:-1] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done") * 2,
    ]
    assert [event["output_index"] for event in found if event["type"].endswith("item.added")] == [0, 1, 2, 3]
    final = found[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert final["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm, ok."}]
    assert final["output"][1]["content"][0]["text"] == "Hi there"
    assert final["output"][2]["arguments"] == '{"x": 1}'
    assert len({item["id"] for item in final["output"]} | {item.get("call_id") for item in final["output"]}) == 7
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == 4
    assert engine.options[0]["reasoning_effort"] == "high"
    assert engine.submitted[0][0].params.thinking_budget == ThinkingBudget(9, (30,), (31,))
    whole = await respond(client, tools=[TOOL])
    unnamed = [{key: item[key] for key in item if key not in ("id", "call_id")} for item in whole["output"]]
    assert unnamed == [{key: item[key] for key in item if key not in ("id", "call_id")} for item in final["output"]]


async def test_the_conversation_goes_back_into_the_template(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    engine.script = lambda request: say(request, (*THOUGHTS, *CALL))
    output = (await respond(client, tools=[TOOL]))["output"]
    call_id = output[2]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": [{"type": "input_text", "text": "42"}]}
    question = {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "b"}]}
    await respond(client, input=[{"role": "developer", "content": "x"}, question, *output, result], tools=[TOOL])
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert engine.chats[1] == [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "one\nb"},
        {"role": "assistant", "content": "Hi there", "reasoning_content": "Hm, ok.", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": call_id},
    ]


async def test_logprobs(client: httpx.AsyncClient) -> None:
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = await respond(client, **fields)
    entries = whole["output"][0]["content"][0]["logprobs"]
    assert len(entries) == whole["usage"]["output_tokens"] == 5
    assert [len(entry["top_logprobs"]) for entry in entries] == [2] * 5
    found = await respond(client, stream=True, **fields)
    assert found[-1]["response"]["output"][0]["content"][0]["logprobs"] == entries
    deltas = [event for event in found if event["type"].endswith("text.delta")]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == ["Hello", " there", ", friend", "!"]


async def test_logprobs_behind_reasoning_are_of_what_is_said(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    words = ("<think>", "\nhm", "\n</think>", "\n\n", "Hello", " there")
    engine.script = lambda request: [
        *(Delta(word, (10 + place,), logprob(word, 1)) for place, word in enumerate(words)),
        Delta("", (END_ID,), logprob("<end>", 1), FinishReason.STOP, timings=timings(request, 7)),
    ]
    whole = await respond(client, top_logprobs=1)
    entries = whole["output"][1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["Hello", " there", "<end>"]
    found = await respond(client, stream=True, top_logprobs=1)
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == ["Hello", " there"]


async def test_a_failure_in_the_stream(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda _: [Delta("Hel", (1,)), StepFailed("it broke")]
    found = await respond(client, stream=True)
    assert types(found)[-2:] == ["output_item.done", "failed"]
    final = found[-1]["response"]
    assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
    assert final["output"][0]["content"][0]["text"] == "Hel" and not engine.live


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"store": True}, "unsupported_value", "store"),
        ({"background": True}, "unsupported_value", "background"),
        ({"truncation": "auto"}, "unsupported_value", "truncation"),
        ({"messages": []}, "unknown_parameter", "messages"),
        ({"input": ""}, None, "input"),
        ({"input": []}, "array_below_min_length", "input"),
        ({"input": None}, "invalid_type", "input"),
        ({"input": "word " * 100}, "context_length_exceeded", "input"),
        ({"max_output_tokens": 100}, "context_length_exceeded", "input"),
        ({"max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        ({"top_logprobs": 21}, "integer_above_max_value", "top_logprobs"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_value", "input[0].type"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "unsupported_value", "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc"}]}]},
            "unsupported_value",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
            "unsupported_parameter",
            "input[0].content[0].file_id",
        ),
        ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type"),
        ({"tools": [TOOL | {"name": "a b"}]}, "invalid_value", "tools[0].name"),
        ({"tools": [TOOL] * 129}, "array_above_max_length", "tools"),
        ({"include": ["file_search_call.results"]}, "unsupported_value", "include[0]"),
        ({"reasoning": {"effort": "huge"}}, "unsupported_value", "reasoning.effort"),
        ({"thinking_token_budget": 3}, "unsupported_parameter", "thinking_token_budget"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "array_above_max_length", "metadata"),
        ({"model": "other"}, "model_not_found", "model"),
    ],
    ids=lambda value: None if not isinstance(value, dict) else next(iter(value)),
)
async def test_refusals_name_the_field(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], code: str | None, param: str
) -> None:
    answer = await client.post(PATH, json=HELLO | fields)
    assert answer.status_code == (404 if code == "model_not_found" else 400), answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert not engine.live


@pytest.fixture
async def sdk(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_the_sdk_creates(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    answer = await sdk.responses.create(model=NAME, input=[{"role": "user", "content": "hi"}], store=False)
    assert answer.output_text == "Hello there, friend!"
    assert answer.usage is not None and answer.usage.input_tokens_details.cached_tokens == 3
    engine.think()
    engine.script = lambda request: say(request, (*THOUGHTS, *CALL))
    tools: Any = [TOOL]
    first = await sdk.responses.create(model=NAME, input="f?", tools=tools)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[2]
    assert call.type == "function_call"
    history: Any = [{"role": "user", "content": "f?"}, *first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "42"})
    second = await sdk.responses.create(model=NAME, input=history, tools=tools)
    assert second.status == "completed"
    assert [message["role"] for message in engine.chats[-1]] == ["user", "assistant", "tool"]


async def test_the_sdk_streams(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    raw = await sdk.responses.create(model=NAME, input="hi", stream=True)
    assert [event.sequence_number async for event in raw] == list(range(12))
    engine.think()
    engine.script = lambda request: say(request, (*THOUGHTS, *CALL))
    tools: Any = [TOOL]
    async with sdk.responses.stream(model=NAME, input="f?", tools=tools) as stream:
        text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        final = await stream.get_final_response()
    assert text == final.output_text == "Hi there"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    history: Any = [{"role": "user", "content": "f?"}, *final.output]
    assert (await sdk.responses.create(model=NAME, input=history, tools=tools)).status == "completed"


async def test_every_part_is_the_first_of_its_item(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, (*THOUGHTS, *CALL))
    events = await respond(client, stream=True, tools=[TOOL])
    assert {event["content_index"] for event in events if "content_index" in event} == {0}
    placed = [event["output_index"] for event in events if "output_index" in event]
    assert placed == sorted(placed) and set(placed) == set(range(max(placed) + 1))


async def test_what_a_tool_leaves_out_is_told_in_the_answer(client: httpx.AsyncClient) -> None:
    answer = await respond(client, tools=[{"type": "function", "name": "f"}])
    assert answer["tools"] == [
        {"type": "function", "name": "f", "strict": False, "description": None, "parameters": None}
    ]


async def test_an_answer_tells_how_the_model_was_sampled(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.write(sampling=UsualSampling(temperature=0.5, top_p=0.75))
    answer = await respond(client)
    assert (answer["temperature"], answer["top_p"]) == (0.5, 0.75)
    assert (await respond(client, temperature=0))["temperature"] == 0.0


async def test_input_is_counted_as_it_is_prompted(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    asked = {"instructions": "be brief", "tools": [TOOL], "reasoning": {"effort": "low"}}
    usage = (await respond(client, **asked))["usage"]
    sdk = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=client)
    counted = await sdk.responses.input_tokens.count(**HELLO, **asked)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", usage["input_tokens"])
    assert engine.chats[-1] == engine.chats[0] and engine.tools[-1] == engine.tools[0]
    assert engine.options[-1] == engine.options[0]
    refused = await client.post(f"{PATH}/input_tokens", json=HELLO | {"previous_response_id": "resp_1"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
