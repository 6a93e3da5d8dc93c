"""The completion route: prompts in every shape, several choices, the legacy logprobs."""

import json
from typing import Any

import httpx
import pytest
from scripted_engine import NAME, ScriptedEngine, say

from engine.request import Delta, FinishReason, Request, TextLogprob
from server.wire_answers import Completion


async def complete(client: httpx.AsyncClient, prompt: Any, **fields: Any) -> Any:
    answer = await client.post("/v1/completions", json={"model": NAME, "prompt": prompt} | fields)
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        parts = answer.text.split("\n\n")
        assert parts[-2:] == ["data: [DONE]", ""]
        return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
    return answer.json()


async def test_a_whole_answer(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    answer = await complete(client, "say hello")
    Completion.model_validate(answer, strict=True)
    choice = {"text": "Hello there, friend!", "index": 0, "logprobs": None, "finish_reason": "stop"}
    assert answer["choices"] == [choice]
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert engine.submitted[0][0].params.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("one two", [(5, 5)]),
        (["one two", "three"], [(5, 5), (5,)]),
        ([7, 8, 9], [(7, 8, 9)]),
        ([[7, 8], [9]], [(7, 8), (9,)]),
    ],
)
async def test_prompts_of_every_shape(
    client: httpx.AsyncClient, engine: ScriptedEngine, prompt: Any, ids: list[tuple[int, ...]]
) -> None:
    answer = await complete(client, prompt)
    assert [request.prompt_ids for request, *_ in engine.submitted] == ids
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(ids)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


async def test_choices_of_several_prompts_are_numbered_prompt_first(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = lambda request: say(request, (f"{request.prompt_ids[0]}", f"#{request.request_id[-1]}"))
    answer = await complete(client, [[7, 7], [8]], n=2, best_of=2)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "7#0"),
        (1, "7#1"),
        (2, "8#2"),
        (3, "8#3"),
    ]
    assert answer["usage"] | {"prompt_tokens_details": 0, "completion_tokens_details": 0} == {
        "prompt_tokens": 3,
        "completion_tokens": 12,
        "total_tokens": 15,
        "prompt_tokens_details": 0,
        "completion_tokens_details": 0,
    }


async def test_the_legacy_logprobs(client: httpx.AsyncClient) -> None:
    answer = await complete(client, "x", logprobs=2, max_tokens=2)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["Hello", " there"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"Hello": -0.5, "w0": -2.0}, {" there": -0.5, "w0": -2.0}],
        "text_offset": [0, 5],
    }
    assert (await complete(client, "x", logprobs=0, max_tokens=1))["choices"][0]["logprobs"]["top_logprobs"] == [
        {"Hello": -0.5}
    ]


async def test_streamed_lists_join_to_the_whole_ones(client: httpx.AsyncClient) -> None:
    whole = await complete(client, "x", logprobs=1)
    chunks = await complete(client, "x", logprobs=1, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        Completion.model_validate(chunk, strict=True)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    parts = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
    joined = {key: [x for part in parts for x in part["logprobs"][key]] for key in whole["choices"][0]["logprobs"]}
    assert joined == whole["choices"][0]["logprobs"]
    assert [part["finish_reason"] for part in parts][-2:] == [None, "stop"]


async def test_offsets_count_characters_when_a_token_is_part_of_one(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    def script(_: Request) -> list[Delta]:
        first, second = "é".encode()
        entries = [bytes([first]), bytes([second]), b"!"]
        logprobs = [TextLogprob(repr(raw), raw, float("-inf")) for raw in entries]
        return [
            Delta("", (1,), (logprobs[0],)),
            Delta("é", (2,), (logprobs[1],)),
            Delta("!", (3,), (logprobs[2],), FinishReason.STOP),
        ]

    engine.script = script
    answer = await complete(client, "x", logprobs=0)
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1]
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0] * 3
