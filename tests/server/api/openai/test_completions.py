"""The completion route: prompts in every shape, several choices, the legacy logprobs."""

import json
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from engine.request import Delta, FinishReason, Request, TextLogprob
from server.api.openai.completions import Completion, CompletionWriter
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine, say

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


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
    check_answer(Completion, answer)
    choice = {"text": "Hello there, friend!", "index": 0, "logprobs": None, "finish_reason": "stop"}
    assert answer["choices"] == [choice]
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert engine.submitted[0][0].params.max_tokens == 16


async def test_a_whole_answer_is_written_beside_the_event_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    write = CompletionWriter.answer

    def noted(self: CompletionWriter) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return write(self)

    monkeypatch.setattr(CompletionWriter, "answer", noted)
    await complete(client, "say hello")
    assert threads and threading.current_thread() not in threads


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
    engine.script = lambda request: say(request, (f"{request.prompt_ids[0]}", f"#{request.id[-1]}"))
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
        check_answer(Completion, chunk)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    parts = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
    joined = {key: [x for part in parts for x in part["logprobs"][key]] for key in whole["choices"][0]["logprobs"]}
    assert joined == whole["choices"][0]["logprobs"]
    assert [part["finish_reason"] for part in parts][-2:] == [None, "stop"]


async def test_offsets_count_characters_of_the_text(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    def script(_: Request) -> list[Delta]:
        first, second = "é".encode()
        entries = [bytes([first]), bytes([second]), b"<end>", b"!"]
        logprobs = [TextLogprob(repr(raw), raw, float("-inf"), is_hidden=raw == b"<end>") for raw in entries]
        return [
            Delta("", (1,), (logprobs[0],)),
            Delta("é", (2,), (logprobs[1],)),
            Delta("", (4,), (logprobs[2],)),
            Delta("!", (3,), (logprobs[3],), FinishReason.STOP),
        ]

    engine.script = script
    answer = await complete(client, "x", logprobs=0)
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1, 1]
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0] * 4


def scored(request: Request) -> list[Delta]:
    """Like `say`; the prompt's tokens were likely in order of their place."""
    deltas = say(request)
    if request.params.prompt_logprobs is None:
        return deltas
    count = request.params.prompt_logprobs
    entries = [
        TextLogprob(f"<{token}>", f"<{token}>".encode(), -1.0 - place, (("w", b"w", -0.25),)[:count])
        for place, token in enumerate(request.prompt_ids[1:])
    ]
    return [replace(deltas[0], prompt_logprobs=tuple(entries)), *deltas[1:]]


@pytest.mark.parametrize("max_tokens", [0, 1, 2])
@pytest.mark.parametrize("stream", [False, True])
async def test_echo_aligns_with_the_ids_sent(
    client: httpx.AsyncClient, engine: ScriptedEngine, max_tokens: int, stream: bool
) -> None:
    """What lm-eval sends for a log-likelihood."""
    engine.script = scored
    fields = {"max_tokens": max_tokens, "logprobs": 1, "echo": True, "temperature": 0, "stream": stream}
    answer = await complete(client, [7, 8, 9], **fields)
    chunks = answer if stream else [answer]
    for chunk in chunks:
        check_answer(Completion, chunk)
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == "<7><8><9>" + "".join(["Hello", " there"][:max_tokens])
    lists = {key: [x for part in parts if part["logprobs"] for x in part["logprobs"][key]] for key in LISTS}
    assert lists["tokens"] == ["<7>", "<8>", "<9>", "Hello", " there"][: 3 + max_tokens]
    assert lists["token_logprobs"] == [None, -1.0, -2.0, -0.5, -0.5][: 3 + max_tokens]
    assert lists["top_logprobs"][:3] == [None, {"w": -0.25, "<8>": -1.0}, {"w": -0.25, "<9>": -2.0}]
    assert lists["text_offset"] == [0, 3, 6, 9, 14][: 3 + max_tokens]
    assert parts[-1]["finish_reason"] == "length"
    assert (engine.submitted[0][0].params.max_tokens, engine.submitted[0][0].params.prompt_logprobs) == (max_tokens, 1)


async def test_echo_without_logprobs_scores_nothing(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    answer = await complete(client, ["say hello", "once more"], echo=True, n=2, max_tokens=1)
    assert [choice["text"] for choice in answer["choices"]] == ["<5><5>Hello"] * 4
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 4
    assert engine.submitted[0][0].params.prompt_logprobs is None


async def test_the_text_echoed_is_the_text_given(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    """A BOS the tokenizer put in front is a token of the lists and not part of the text."""
    engine.script = scored
    engine.token_pieces = lambda ids: (b"<s>", *(b" it" for _ in ids[1:]))  # type: ignore[method-assign]
    answer = await complete(client, "it it", echo=True, logprobs=0, max_tokens=0)
    assert answer["choices"][0]["text"] == "<s> it"  # what the ids say: the given text is not their end
    engine.token_pieces = lambda ids: (b"<s>", b"it it")  # type: ignore[method-assign]
    answer = await complete(client, "it it", echo=True, logprobs=0, max_tokens=0)
    assert answer["choices"][0]["text"] == "it it"
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 0]


async def test_best_of_gives_the_likeliest_per_token(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    def script(request: Request) -> list[Delta]:
        number = int(request.id.rsplit("-", 1)[1]) % 4
        means = [-3.0, -0.5, -2.0, -0.25]
        entries = (TextLogprob("x", b"x", means[number]),) * (number + 1)
        return [Delta(f"#{number}", (1,) * (number + 1), entries, FinishReason.STOP)]

    engine.script = script
    answer = await complete(client, ["a", "b"], n=2, best_of=4)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "#3"),
        (1, "#1"),
        (2, "#3"),
        (3, "#1"),
    ]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 20  # those not shown were generated as well
    assert {request.params.logprobs for request, *_ in engine.submitted} == {0}


@pytest.mark.parametrize(("asked", "kept"), [(2, 2), (5, 3), (-1, 3), (1, 1)])
async def test_only_the_end_of_a_long_prompt(
    client: httpx.AsyncClient, engine: ScriptedEngine, asked: int, kept: int
) -> None:
    await complete(client, "one two three", truncate_prompt_tokens=asked)
    await complete(client, [7, 8, 9], truncate_prompt_tokens=asked)
    assert [request.prompt_ids for request, *_ in engine.submitted] == [(5,) * kept, (7, 8, 9)[3 - kept :]]
    await complete(client, [1] * 500, truncate_prompt_tokens=-1, max_tokens=30)
    assert len(engine.submitted[-1][0].prompt_ids) == 70


async def test_usage_on_every_chunk(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await complete(client, "x", stream=True, stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 5]
    chunks = await complete(client, "x", stream=True, stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in chunks)
