"""`prediction` of a chat: what the engine is given, and what the answer counts."""

import dataclasses
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from engine.client.engine import Engine
from engine.request import Delta, Request
from server.api.openai.chat import ChatChunk, ChatCompletion
from server.generation.chat_request import PredictedContent
from server.generation.params import predicted_tokens
from tests.server.answers import check_answer
from tests.server.api.openai.test_chat import HELLO, chat, events
from tests.server.scripted_engine import ScriptedEngine, say

PREDICTED: dict[str, Any] = {"prediction": {"type": "content", "content": "Hello there , friend !"}}


async def test_what_the_model_does_not_know_ends_a_prediction() -> None:
    """Tokenizers may know more tokens than their models; a step with such an id would fail for all of its requests."""

    async def tokenize(text: str, add_special: bool) -> list[int]:
        return [3, 9, 200, 5]

    engine = cast("Engine", SimpleNamespace(tokenize=tokenize, info=SimpleNamespace(vocab=200, max_context=9)))
    content = PredictedContent(type="content", content="any")
    assert await predicted_tokens(content, engine) == (3, 9)


def counted(request: Request) -> Sequence[Delta]:
    """Of seven guesses five were right, of them four of six from the prediction."""
    deltas = say(request)
    timings = deltas[-1].timings
    assert timings is not None
    told = dataclasses.replace(
        timings, drafted_tokens=7, accepted_tokens=5, predicted_tokens=6, accepted_predicted_tokens=4
    )
    return [*deltas[:-1], dataclasses.replace(deltas[-1], timings=told)]


async def test_its_tokens_reach_the_engine(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await chat(client, **PREDICTED, n=2)
    parts = [{"type": "text", "text": "Hello there"}, {"type": "text", "text": "friend"}]
    await chat(client, prediction={"type": "content", "content": parts})
    await chat(client)
    assert [request.prediction for request, *_ in engine.submitted] == [(5,) * 5] * 2 + [(5,) * 3, ()]


async def test_a_prediction_longer_than_any_answer_is_cut(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await chat(client, prediction={"type": "content", "content": "word " * 1000})
    assert len(engine.submitted[0][0].prediction) == engine.info.max_context


async def test_right_and_wrong_tokens_are_counted_only_for_a_request_with_one(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = counted
    answer = (await chat(client, **PREDICTED, n=2)).json()
    check_answer(ChatCompletion, answer)
    details = {"reasoning_tokens": 0, "accepted_prediction_tokens": 8, "rejected_prediction_tokens": 4}
    assert answer["usage"]["completion_tokens_details"] == details
    assert answer["usage"]["completion_tokens"] == 10
    plain = (await chat(client)).json()
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_they_are_in_the_last_chunk_of_a_stream(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = counted
    chunks = events((await chat(client, **PREDICTED, stream=True, stream_options={"include_usage": True})).text)
    check_answer(ChatChunk, chunks[-1])
    assert chunks[-1]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 4


@pytest.mark.parametrize(
    "prediction",
    ["Hello", {"type": "content"}, {"type": "text", "content": "a"}, {"type": "content", "content": [], "more": 1}],
)
async def test_what_is_no_prediction_is_refused_by_name(client: httpx.AsyncClient, prediction: Any) -> None:
    answer = await client.post("/v1/chat/completions", json=HELLO | {"prediction": prediction})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prediction")


async def test_the_access_log_says_how_many_guesses_were_right(
    client: httpx.AsyncClient, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = counted
    with caplog.at_level(logging.INFO, "hexserve.access"):
        await chat(client, n=2)
        await chat(client, stream=True)
        engine.script = say
        await chat(client)
    lines = [record.getMessage() for record in caplog.records if record.name == "hexserve.access"]
    assert [line.partition(" guesses=")[2] for line in lines] == ["10/14", "5/7", ""]
