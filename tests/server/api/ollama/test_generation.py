"""/api/chat and /api/generate: what the engine is asked and what comes back, whole and line by line."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from engine.bundle.specs import UsualSampling
from engine.errors import StepFailed
from engine.grammar.spec import JsonSchema
from engine.request import Delta, FinishReason, Request
from server.api.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine, say

HELLO: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "say hello please"}]}
PROMPT: dict[str, Any] = {"model": NAME, "prompt": "say hello please"}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "utc"}}\n</tool_call>'
PIECES = [CALL[start : start + 7] for start in range(0, len(CALL), 7)]


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer


async def chat(client: httpx.AsyncClient, **fields: Any) -> Any:
    return (await post(client, "/api/chat", HELLO | {"stream": False} | fields)).json()


def lines(answer: httpx.Response) -> list[Any]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("}\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def cut_after(*words: str) -> Callable[[Request], list[Delta]]:
    """A script that says these words and then reaches its limit."""

    def script(request: Request) -> list[Delta]:
        *deltas, _ = say(request, words)
        return [*deltas, Delta("", finish=FinishReason.LENGTH)]

    return script


async def test_a_whole_chat(client: httpx.AsyncClient) -> None:
    answer = await chat(client)
    check_answer(OllamaChatAnswer, answer)
    assert answer["message"] == {"role": "assistant", "content": "Hello there, friend!"}
    assert (answer["model"], answer["done"], answer["done_reason"]) == (NAME, True, "stop")
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (3, 5)
    assert (answer["prompt_eval_duration"], answer["eval_duration"]) == (20_000_000, 30_000_000)
    assert answer["total_duration"] >= answer["load_duration"] >= 0


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream": None}])
async def test_a_chat_streams_unless_it_is_told_not_to(client: httpx.AsyncClient, fields: dict[str, Any]) -> None:
    streamed = lines(await post(client, "/api/chat", HELLO | fields))
    for line in streamed:
        check_answer(OllamaChatAnswer, line)
    assert [line["message"]["content"] for line in streamed] == ["Hello", " there", ", friend", "!", ""]
    assert [line["done"] for line in streamed] == [False] * 4 + [True]
    assert set(streamed[0]) == {"model", "created_at", "message", "done"}
    assert {"done_reason", "total_duration", "eval_count"} <= set(streamed[-1])


async def test_a_prompt_whole_and_streamed(client: httpx.AsyncClient) -> None:
    whole = (await post(client, "/api/generate", PROMPT | {"stream": False})).json()
    check_answer(OllamaGenerateAnswer, whole)
    assert (whole["response"], whole["done_reason"], whole["eval_count"]) == ("Hello there, friend!", "stop", 5)
    streamed = lines(await post(client, "/api/generate", PROMPT))
    for line in streamed:
        check_answer(OllamaGenerateAnswer, line)
    assert "".join(line["response"] for line in streamed) == whole["response"]
    assert "message" not in streamed[0]


async def test_a_prompt_is_what_a_user_said(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await post(client, "/api/generate", PROMPT | {"system": "be brief", "suffix": "", "template": "", "context": []})
    assert engine.chats == [
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say hello please"}]
    ]


async def test_a_raw_prompt_goes_to_the_model_as_it_is(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    engine.script = lambda request: say(request, ("<think>", "x", "</think>"))
    answer = (await post(client, "/api/generate", PROMPT | {"raw": True, "stream": False})).json()
    assert answer["response"] == "<think>x</think>"
    assert engine.chats == []
    refused = await client.post("/api/generate", json=PROMPT | {"raw": True, "system": "be brief"})
    assert (refused.status_code, refused.json()) == (400, {"error": "'system' is not supported with 'raw'."})


@pytest.mark.parametrize("name", [NAME, f"{NAME}:latest"])
async def test_a_name_may_have_the_tag_latest(client: httpx.AsyncClient, name: str) -> None:
    assert (await chat(client, model=name))["model"] == name


@pytest.mark.parametrize("name", [f"{NAME}:small", "nobody:latest", "nobody"])
async def test_a_model_that_is_not_there(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post("/api/chat", json=HELLO | {"model": name})
    assert answer.status_code == 404
    assert name in answer.json()["error"]


async def test_options_reach_the_engine(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    options = {"num_predict": 9, "temperature": 0.5, "top_p": 0.7, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["a"]}
    options |= {"repeat_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": -0.3, "repeat_last_n": -1}
    await chat(client, options=options | {"num_ctx": 100}, logprobs=True, top_logprobs=4)
    request, stop, *_ = engine.submitted[0]
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k, params.min_p) == (9, 0.5, 0.7, 7, 0.1)
    assert (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) == (1.1, 0.2, -0.3)
    assert (params.seed, params.logprobs, stop) == (3, 4, ("a",))


async def test_defaults_are_those_of_ollama(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """Whatever the model's files advise, which other formats follow."""
    engine.write(sampling=UsualSampling(0.1, 3, 0.2, 0.3, 1.2))
    await chat(client, options={"num_predict": -1, "seed": -1, "temperature": None})
    params = engine.submitted[0][0].params
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.8, 40, 0.9, None)
    assert (params.max_tokens, params.min_p, params.repetition_penalty) == (100 - 3, 0.0, 1.0)


async def test_more_than_fits_is_as_much_as_fits(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    for num_predict in (97, 98, 10**9):
        await chat(client, options={"num_predict": num_predict})
    assert [request.params.max_tokens for request, *_ in engine.submitted] == [97, 97, 97]


async def test_penalties_that_look_back_at_nothing_are_none(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.write(sampling=UsualSampling(repetition_penalty=1.2))
    penalties = {"repeat_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0}
    await chat(client, options=penalties | {"repeat_last_n": 0})
    params = engine.submitted[0][0].params
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)


async def test_hints_for_ollamas_runner_change_nothing(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    hints = {"num_keep": 5, "num_batch": 2, "num_gpu": 99, "num_thread": 8, "use_mmap": True, "mirostat": 0}
    await chat(client)
    await chat(client, options=hints | {"mirostat_tau": 5.0, "tfs_z": 1, "typical_p": 1.0}, keep_alive="5m")
    assert engine.submitted[0][0].params == engine.submitted[1][0].params


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/api/chat", {"options": {"typical_p": 0.7}}, "'options.typical_p'"),
        ("/api/chat", {"options": {"mirostat": 2}}, "'options.mirostat'"),
        ("/api/chat", {"options": {"repeat_last_n": 64}}, "'options.repeat_last_n'"),
        ("/api/chat", {"options": {"num_ctx": 101}}, "'options.num_ctx': 101 is above the 100 tokens"),
        ("/api/chat", {"options": {"num_predict": 0}}, "'options.num_predict'"),
        ("/api/chat", {"options": {"nonsense": 1}}, "'options.nonsense'"),
        ("/api/chat", {"think": True}, "'think' is not supported"),
        ("/api/chat", {"think": "a lot"}, "'think'"),
        ("/api/chat", {"format": "xml"}, "'format'"),
        ("/api/chat", {"truncate": True}, "'truncate'"),
        ("/api/chat", {"top_logprobs": 2}, "'top_logprobs' needs 'logprobs'"),
        ("/api/chat", {"keep_alive": "soon"}, "'keep_alive'"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "'messages[0].images[0]'"),
        ("/api/chat", {"messages": [{"role": "nobody", "content": "x"}]}, "'messages[0].role'"),
        ("/api/generate", {"suffix": "end"}, "'suffix'"),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "'template'"),
        ("/api/generate", {"context": [1, 2]}, "'context'"),
        ("/api/generate", {"images": ["aGk="]}, "'images[0]'"),
        ("/api/generate", {"steps": 4}, "'steps'"),
        ("/api/generate", {"prompt": "word " * 200}, "200 in the prompt, 1 in the completion"),
        ("/api/generate", {"prompt": "", "keep_alive": 0}, "is loaded from the start of this server to its end"),
        ("/api/chat", {"messages": [], "keep_alive": "0s"}, "is loaded from the start of this server to its end"),
    ],
)
async def test_what_is_not_honoured_is_refused_by_name(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], named: str
) -> None:
    answer = await client.post(path, json=(HELLO if path == "/api/chat" else PROMPT) | fields)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    assert named in answer.json()["error"]


@pytest.mark.parametrize(
    ("form", "schema"),
    [("json", '{"type":"object"}'), ({"type": "string"}, '{"type":"string"}'), ("", None), (None, None)],
)
async def test_the_form_of_an_answer(
    client: httpx.AsyncClient, engine: ScriptedEngine, form: Any, schema: str | None
) -> None:
    await chat(client, format=form)
    specs = [spec.form for spec, _ in engine.forms]
    assert [one.schema for one in specs if isinstance(one, JsonSchema)] == ([schema] if schema else [])


async def test_a_form_that_cannot_be_enforced_is_named_as_it_was_asked_for(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.denoise()
    answer = await client.post("/api/chat", json=HELLO | {"format": {"type": "object"}})
    assert (answer.status_code, "'format'" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("think", "options"),
    [
        (None, {}),
        (True, {"enable_thinking": True, "thinking": True}),
        (False, {"enable_thinking": False, "thinking": False}),
        ("low", {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}),
    ],
)
async def test_reasoning(client: httpx.AsyncClient, engine: ScriptedEngine, think: Any, options: Any) -> None:
    engine.think()
    engine.script = lambda request: say(request, ("<think>", "well", "</think>", "yes"))
    answer = await chat(client, think=think)
    assert answer["message"] == {"role": "assistant", "content": "yes", "thinking": "well"}
    assert engine.options == [options]
    streamed = lines(await post(client, "/api/generate", PROMPT | {"think": think}))
    assert [(line["response"], line.get("thinking")) for line in streamed[:-1]] == [("", "well"), ("yes", None)]


async def test_calls_are_whole_and_their_arguments_objects(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, ("One moment.", *PIECES, "\n", *PIECES))
    answer = await chat(client, tools=[TOOL])
    calls = answer["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"index": place, "name": "clock", "arguments": {"zone": "utc"}} for place in (0, 1)
    ]
    assert (answer["message"]["content"], answer["done_reason"]) == ("One moment.", "stop")
    assert calls[0]["id"] != calls[1]["id"]
    streamed = lines(await post(client, "/api/chat", HELLO | {"tools": [TOOL]}))
    called = [line["message"]["tool_calls"] for line in streamed if "tool_calls" in line["message"]]
    assert [call["function"]["index"] for calls in called for call in calls] == [0, 1]
    assert engine.tools == [[TOOL], [TOOL]]


async def test_a_call_that_is_cut_is_text(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = cut_after(CALL[:-18])
    answer = await chat(client, tools=[TOOL])
    assert answer["message"] == {"role": "assistant", "content": '{"zone": "u'}
    assert answer["done_reason"] == "length"
    *streamed, _ = lines(await post(client, "/api/chat", HELLO | {"tools": [TOOL]}))
    assert [line["message"] for line in streamed] == [answer["message"]]


async def test_logprobs_have_an_entry_per_token(client: httpx.AsyncClient) -> None:
    whole = await chat(client, logprobs=True, top_logprobs=2)
    check_answer(OllamaChatAnswer, whole)
    assert len(whole["logprobs"]) == whole["eval_count"] == 5
    assert (whole["logprobs"][0]["token"], len(whole["logprobs"][0]["top_logprobs"])) == ("Hello", 2)
    streamed = lines(await post(client, "/api/chat", HELLO | {"logprobs": True, "top_logprobs": 2}))
    assert [entry for line in streamed for entry in line.get("logprobs", [])] == whole["logprobs"]


async def test_without_anything_to_say_the_model_is_loaded(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    for path, shown in (
        ("/api/chat", {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"response": ""}),
    ):
        answer = (await post(client, path, {"model": NAME, "keep_alive": "10m"})).json()
        assert {key: answer[key] for key in ("model", "done", "done_reason", *shown)} == {
            "model": NAME,
            "done": True,
            "done_reason": "load",
            **shown,
        }
    assert engine.submitted == []


async def test_a_stream_that_breaks_ends_with_an_error(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [*say(request)[:2], StepFailed("the graph broke")]
    streamed = lines(await post(client, "/api/chat", HELLO))
    assert [line.get("message", {}).get("content") for line in streamed] == ["Hello", " there", None]
    assert streamed[-1] == {"error": "the graph broke"}


async def test_before_the_first_line_an_error_has_its_status(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda _: [StepFailed("the graph broke")]
    answer = await client.post("/api/chat", json=HELLO)
    assert (answer.status_code, answer.json()) == (500, {"error": "the graph broke"})


async def test_a_client_that_leaves_ends_its_request(base_url: str, engine: ScriptedEngine) -> None:
    engine.hold(1)
    async with (
        httpx.AsyncClient(base_url=base_url) as client,
        client.stream("POST", "/api/chat", json=HELLO) as answer,
    ):
        await anext(answer.aiter_lines())
    await engine.abort_seen.wait()
    assert engine.live == set()
