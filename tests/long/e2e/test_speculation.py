"""A server that guesses in every way, and one that never does: the same answers, also after its worker was killed."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.demo.location import demo_folder
from tests.live import LiveServer, serving
from tools.random_checkpoint import SHAPES, write_checkpoint

pytestmark = pytest.mark.skipif(not (demo_folder() / "model.safetensors").is_file(), reason="needs the embedded model")
ONE_SHAPE = ("--bundle", "demo", "--deterministic", "--kv-slots", "1024")
PASSAGE = "red, blue, green, pink, white, black, brown, grey, gold, silver"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 3},
    "choices": {"temperature": 1.0, "seed": 4, "n": 3},
    "penalties": {"temperature": 0.7, "seed": 5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "stop string": {"temperature": 0, "stop": ["white"]},
    "form": {
        "temperature": 0.8,
        "seed": 6,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
    },
    "prediction": {"temperature": 0, "prediction": {"type": "content", "content": PASSAGE}},
    "prediction and stop": {
        "temperature": 0,
        "stop": ["brown"],
        "prediction": {"type": "content", "content": f"{PASSAGE}, no"},
    },
    "logprobs": {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    "long": {"temperature": 1.2, "seed": 8, "min_tokens": 120, "max_tokens": 120},
}


@pytest.fixture(scope="module")
def guessing() -> Iterator[LiveServer]:
    with serving(*ONE_SHAPE, "--lookup-rows", "4", "--draft", "demo") as live:
        yield live


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    with serving(*ONE_SHAPE) as live:
        return asyncio.run(ask_all(live))


async def ask(client: httpx.AsyncClient, fields: dict[str, Any]) -> Any:
    body = {
        "model": "demo",
        "max_tokens": 60,
        "messages": [{"role": "user", "content": f"Repeat this list: {PASSAGE}"}],
    }
    answer = await client.post("/v1/chat/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ask_all(server: LiveServer) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        answers = await asyncio.gather(*(ask(client, fields) for fields in REQUESTS.values()))
    return dict(zip(REQUESTS, answers, strict=True))


def without_counts(answer: dict[str, Any]) -> Any:
    return answer["choices"], answer["usage"]["completion_tokens"]


def of_kind(server: LiveServer, name: str, kind: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and f'kind="{kind}"' in line)


def test_every_answer_is_the_one_without_guesses(guessing: LiveServer, expected: dict[str, Any]) -> None:
    answers = asyncio.run(ask_all(guessing))
    for name, answer in answers.items():
        assert without_counts(answer) == without_counts(expected[name]), name
    json.loads(answers["form"]["choices"][0]["message"]["content"])
    for kind in ("draft", "prediction"):
        assert of_kind(guessing, "hexserve:guesses_accepted_total", kind) > 10, kind


def test_usage_and_log_tell_of_a_prediction_that_was_right(guessing: LiveServer) -> None:
    fields = REQUESTS["prediction"] | {"logit_bias": {}}
    details = asyncio.run(_alone(guessing, fields))["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 10
    assert any("guesses=" in line and "/v1/chat/completions 200" in line for line in guessing.lines)


async def _alone(server: LiveServer, fields: dict[str, Any]) -> Any:
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        return await ask(client, fields)


def test_a_worker_killed_in_the_middle_loses_nothing(guessing: LiveServer, expected: dict[str, Any]) -> None:
    async def killed_meanwhile() -> dict[str, Any]:
        steps = guessing.metric("hexserve:steps_total")
        asking = asyncio.create_task(ask_all(guessing))
        while await asyncio.to_thread(guessing.metric, "hexserve:steps_total") < steps + 8:
            pass
        os.kill(guessing.worker_pid(), signal.SIGKILL)
        return await asking

    restarts = guessing.metric("hexserve:worker_restarts_total")
    answers = asyncio.run(killed_meanwhile())
    assert {name: without_counts(answer) for name, answer in answers.items()} == {
        name: without_counts(answer) for name, answer in expected.items()
    }
    assert guessing.metric("hexserve:worker_restarts_total") == restarts + 1


def test_a_draft_of_other_tokens_ends_the_start_with_a_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("other") / "stranger"
    write_checkpoint(folder, SHAPES["tiny"])
    server = serving(*ONE_SHAPE, "--draft", str(folder))
    with pytest.raises(AssertionError, match=r"stranger.* has other tokens than demo"), server:
        pass
