"""The chat route: what the engine is asked and what comes back, whole and streamed, to the byte."""

import json
from typing import Any

import httpx
import pytest

from engine.bundle.specs import UsualSampling
from server.api.openai.chat import ChatChunk, ChatCompletion
from tests.server.answers import check_answer
from tests.server.scripted_engine import FINGERPRINT, NAME, ScriptedEngine, say

HELLO = {"model": NAME, "messages": [{"role": "user", "content": "say hello please"}]}


async def chat(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await client.post("/v1/chat/completions", json=HELLO | fields)
    assert answer.status_code == 200, answer.text
    return answer


def events(text: str) -> list[Any]:
    """The JSON of every event before [DONE]; anything that is not exactly framed fails."""
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: {") for part in parts[:-2])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


async def test_a_whole_answer(client: httpx.AsyncClient) -> None:
    answer = (await chat(client)).json()
    check_answer(ChatCompletion, answer)
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there, friend!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["model"], answer["system_fingerprint"]) == (NAME, FINGERPRINT)


async def test_the_bytes_of_a_stream(client: httpx.AsyncClient) -> None:
    answer = await chat(client, stream=True, max_tokens=2)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    first = events(answer.text)[0]
    envelope = (
        f'{{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},'
        f'"model":"{NAME}","system_fingerprint":"{FINGERPRINT}","choices":[{{"index":0,"delta":'
    )
    tail = ',"logprobs":null,"finish_reason":null}]}\n\n'
    assert answer.content.decode() == (
        f'data: {envelope}{{"role":"assistant","content":""}}{tail}'
        f'data: {envelope}{{"content":"Hello"}}{tail}'
        f'data: {envelope}{{"content":" there"}}{tail}'
        f'data: {envelope}{{}},"logprobs":null,"finish_reason":"length"}}]}}\n\n'
        "data: [DONE]\n\n"
    )


async def test_usage_is_null_on_all_chunks_but_the_last(client: httpx.AsyncClient) -> None:
    answer = await chat(client, stream=True, stream_options={"include_usage": True})
    chunks = events(answer.text)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 8
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for chunk in chunks:
        check_answer(ChatChunk, chunk)


async def test_each_of_n_choices_streams_in_order(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, (f"I am {request.id[-1]}", " indeed"))
    chunks = events((await chat(client, stream=True, n=3)).text)
    parts = [chunk["choices"][0] for chunk in chunks]
    for index in range(3):
        own = [part for part in parts if part["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in own) == f"I am {index} indeed"
        assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + ["stop"]
    assert [part["index"] for part in parts] != sorted(part["index"] for part in parts)  # interleaved


async def test_n_choices_share_the_prompt_count_and_have_their_own_seeds(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    answer = (await chat(client, n=2, seed=2**63 - 1)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 10)
    assert [request.params.seed for request, *_ in engine.submitted] == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("top", [None, 0, 2])
async def test_logprobs_have_one_entry_per_token_streamed_or_not(client: httpx.AsyncClient, top: int | None) -> None:
    fields = {"logprobs": True} | ({} if top is None else {"top_logprobs": top})
    whole = (await chat(client, **fields)).json()
    check_answer(ChatCompletion, whole)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"] == 5
    assert (entries[0]["token"], entries[0]["bytes"], entries[0]["logprob"]) == ("Hello", list(b"Hello"), -0.5)
    assert len(entries[0]["top_logprobs"]) == (top or 0)
    chunks = events((await chat(client, stream=True, **fields)).text)
    for chunk in chunks:
        check_answer(ChatChunk, chunk)
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for logprobs in streamed if logprobs for entry in logprobs["content"]] == entries


async def test_every_parameter_reaches_the_engine(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await chat(
        client,
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=-0.3,
        logit_bias={"7": -100, "8": 2.5},
        seed=-5,
        stop=["a", "b"],
        stop_token_ids=[3, 4],
        min_tokens=2,
        logprobs=True,
        top_logprobs=4,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        priority=-1,
    )
    request, stop, include_stop, skip_special = engine.submitted[0]
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (9, 0.5, 0.9, 40, 0.1)
    assert (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) == (1.1, 0.2, -0.3)
    assert (params.logit_bias, params.seed) == (((7, -100.0), (8, 2.5)), -5)
    assert (params.stop_token_ids, params.min_tokens, params.logprobs) == ((2, 3, 4), 2, 4)
    assert (stop, include_stop, skip_special, request.priority) == (("a", "b"), True, False, -1)


async def test_defaults_are_those_of_openai(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await chat(client, temperature=None, n=None, stop=None, user="someone", metadata={"a": "b"}, store=False)
    request, stop, include_stop, skip_special = engine.submitted[0]
    params = request.params
    assert params.max_tokens == 100 - 3  # the rest of the window
    assert (params.temperature, params.top_p, params.top_k, params.seed, params.logprobs) == (1.0, 1.0, 0, None, None)
    assert (params.stop_token_ids, stop, include_stop, skip_special) == ((2,), (), False, True)


async def test_what_a_request_leaves_open_is_as_the_model_advises(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.write(sampling=UsualSampling(temperature=0.7, top_k=20, top_p=0.8, min_p=0.05, repetition_penalty=1.1))
    await chat(client)
    await chat(client, temperature=1, top_k=-1, top_p=1, min_p=0, repetition_penalty=1)
    await chat(client, top_p=0)
    found = [
        (params.temperature, params.top_k, params.top_p, params.min_p, params.repetition_penalty)
        for params in (request.params for request, *_ in engine.submitted)
    ]
    assert found == [(0.7, 20, 0.8, 0.05, 1.1), (1.0, 0, 1.0, 0.0, 1.0), (0.7, 1, 1.0, 0.05, 1.1)]


async def test_texts_that_end_the_models_answers(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.write(stop_texts=("User:",))
    await chat(client, stop="a")
    await chat(client, ignore_eos=True)
    assert [stop for _, stop, _, _ in engine.submitted] == [("User:", "a"), ()]


async def test_top_p_zero_means_the_likeliest_token(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await chat(client, top_p=0, ignore_eos=True)
    params = engine.submitted[0][0].params
    assert (params.top_k, params.top_p, params.stop_token_ids) == (1, 1.0, ())
    assert params.ignored_end_ids == engine.info.manifest.text.stop_ids


async def test_what_the_template_is_given(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    kept = {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, kept], "name": "bob"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "ok", "provider_specific_fields": {"refusal": None}},
        {"role": "tool", "tool_call_id": "c2", "content": "43", "name": "f"},
    ]
    await chat(client, messages=messages)
    assert engine.chats[0] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo", "name": "bob"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": "ok"},
        {"role": "tool", "content": "43", "tool_call_id": "c2", "name": "f"},
    ]
