"""Completions of prompts that are given as embeddings."""

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest

from server.api.openai.completions import Completion
from tests.embeds import encoded
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine

THREE = np.arange(12, dtype=np.float32).reshape(3, 4)


async def post(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": NAME} | fields)


@pytest.mark.parametrize("prompt", [{}, {"prompt": None}, {"prompt": ""}], ids=["left out", "null", "empty"])
async def test_rows_take_the_place_of_tokens(
    client: httpx.AsyncClient, engine: ScriptedEngine, prompt: dict[str, Any]
) -> None:
    answer = await post(client, prompt_embeds=encoded(THREE), **prompt)
    assert answer.status_code == 200, answer.text
    check_answer(Completion, answer.json())
    assert answer.json()["usage"]["prompt_tokens"] == 3
    ((request, *_),) = engine.submitted
    assert request.prompt_ids == (0, 0, 0)
    assert request.prompt_embeds == THREE.tobytes()


async def test_several_prompts_choices_and_streams(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    given = [encoded(THREE), encoded(THREE[:1].astype(np.float16))]
    answer = await post(client, prompt_embeds=given, n=2, stream=True, logprobs=1, seed=3)
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
    assert [len(request.prompt_ids) for request, *_ in engine.submitted] == [3, 3, 1, 1]
    assert [len(request.prompt_embeds) for request, *_ in engine.submitted] == [48, 48, 16, 16]


async def test_prompts_of_tokens_have_none(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await post(client, prompt=[5, 6])
    assert engine.submitted[0][0].prompt_embeds == b""


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": "x"}, "prompt_embeds", "'prompt' or 'prompt_embeds', not both"),
        ({"prompt": [5]}, "prompt_embeds", "'prompt' or 'prompt_embeds', not both"),
        ({"echo": True}, "echo", "'echo' needs the tokens of a prompt"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "needs the tokens of a prompt"),
        ({"prompt_embeds": "%"}, "prompt_embeds", "is not base64"),
        ({"prompt_embeds": ""}, "prompt_embeds", ""),
        ({"prompt_embeds": []}, "prompt_embeds", ""),
        ({"prompt_embeds": 3}, "prompt_embeds", ""),
        ({"prompt_embeds": [encoded(THREE), encoded(THREE.T.copy())]}, "prompt_embeds[1]", "rows of 3 numbers"),
        ({"prompt_embeds": encoded(np.full((1, 4), np.nan))}, "prompt_embeds", "must be a .npy file"),
        ({"prompt_embeds": encoded(np.zeros((200, 4), np.float16))}, "prompt_embeds", "maximum context length"),
    ],
)
async def test_what_is_refused(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = await post(client, **{"prompt_embeds": encoded(THREE), **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], message in error["message"]) == (param, True), error
    assert engine.submitted == []


async def test_a_prompt_is_still_needed(client: httpx.AsyncClient) -> None:
    for fields in ({}, {"prompt_embeds": None}):
        answer = await post(client, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_numbers_times_choices_are_bounded(
    client: httpx.AsyncClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.generation.launch.MOST_FORM_BYTES", 100)
    assert (await post(client, prompt_embeds=encoded(THREE), n=2)).status_code == 200
    answer = await post(client, prompt_embeds=encoded(THREE), n=3)
    assert answer.status_code == 400
    assert "'prompt_embeds' times 3 choices has 144 bytes, the limit is 100." in json.dumps(answer.json())


async def test_chats_have_no_such_field(client: httpx.AsyncClient) -> None:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "x"}],
        "prompt_embeds": base64.b64encode(b"x").decode(),
    }
    answer = await client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unknown_parameter")
