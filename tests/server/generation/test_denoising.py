"""The fields of block diffusion: what each means, and what is refused by name."""

from typing import Any

import httpx
import pytest

from engine.bundle.specs import UsualSampling
from engine.request import Denoising, Unmasking
from server.generation.params import FIELDS
from tests.server.scripted_engine import NAME, ScriptedEngine

GIVEN: dict[str, Any] = {
    "denoising_steps": 3,
    "unmasking_strategy": "entropy_bound",
    "confidence_threshold": 0.5,
    "entropy_bound": 2,
}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "one two"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "one two"}]},
    "/v1/responses": {"input": "one two"},
}


async def ask(client: httpx.AsyncClient, path: str, fields: dict[str, Any]) -> httpx.Response:
    return await client.post(path, json={"model": NAME, **ROUTES[path], **fields})


def submitted(engine: ScriptedEngine) -> list[Denoising | None]:
    return [request.params.denoising for request, *_ in engine.submitted]


@pytest.mark.parametrize("path", ROUTES)
async def test_fields_over_defaults(client: httpx.AsyncClient, engine: ScriptedEngine, path: str) -> None:
    engine.denoise(8)
    for fields in ({}, GIVEN, dict.fromkeys(FIELDS)):
        assert (await ask(client, path, fields)).status_code == 200
    default = Denoising(8, 999, 8, Unmasking.DYNAMIC_CONFIDENCE, 0.9, 0.1)
    assert submitted(engine) == [
        default,
        Denoising(8, 999, 3, Unmasking.ENTROPY_BOUND, 0.5, 2.0),
        default,
    ]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("field", FIELDS)
async def test_other_models_have_no_blocks(
    client: httpx.AsyncClient, engine: ScriptedEngine, path: str, field: str
) -> None:
    answer = await ask(client, path, {field: GIVEN[field]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert "one token after the other" in error["message"]
    assert (await ask(client, path, {})).status_code == 200
    assert submitted(engine) == [None]


async def test_a_penalty_that_the_files_advise_is_left_out(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.denoise(8)
    engine.write(sampling=UsualSampling(temperature=0.5, repetition_penalty=1.2))
    assert (await ask(client, "/v1/completions", {})).status_code == 200
    params = engine.submitted[0][0].params
    assert (params.temperature, params.repetition_penalty) == (0.5, 1.0)


UNORDERED: dict[str, dict[str, Any]] = {
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": -0.5},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "response_format": {"response_format": {"type": "json_object"}},
    "guided_regex": {"guided_regex": "a+"},
    "prediction": {"prediction": {"type": "content", "content": "one two"}},
    "thinking_token_budget": {"thinking_token_budget": 9},
    "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
    "parallel_tool_calls": {"tools": TOOLS, "parallel_tool_calls": False},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
}


@pytest.mark.parametrize("field", UNORDERED)
async def test_what_depends_on_every_token_before_is_refused(
    client: httpx.AsyncClient, engine: ScriptedEngine, field: str
) -> None:
    engine.think()
    assert (await ask(client, "/v1/chat/completions", UNORDERED[field])).status_code == 200
    engine.denoise()
    answer = await ask(client, "/v1/chat/completions", UNORDERED[field])
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert f"'{field}'" in error["message"]
    assert len(engine.submitted) == 1


async def test_the_responses_route_names_its_own_fields(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.denoise()
    answer = await ask(client, "/v1/responses", {"text": {"format": {"type": "json_object"}}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format")
    named = {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"}}
    answer = await ask(client, "/v1/responses", named)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")


async def test_penalties_that_change_nothing_and_tools_that_force_nothing_are_taken(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.denoise()
    neutral = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "tools": TOOLS}
    for choice in ("auto", "none"):
        answer = await ask(client, "/v1/chat/completions", {**neutral, "tool_choice": choice})
        assert answer.status_code == 200, answer.text
    assert len(engine.submitted) == 2


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"denoising_steps": 9}, "integer_above_max_value", "denoising_steps"),
        ({"denoising_steps": 0}, "integer_below_min_value", "denoising_steps"),
        ({"denoising_steps": 2.0}, "invalid_type", "denoising_steps"),
        ({"unmasking_strategy": "best"}, "unsupported_value", "unmasking_strategy"),
        ({"confidence_threshold": 1.1}, "decimal_above_max_value", "confidence_threshold"),
        ({"entropy_bound": -0.1}, "decimal_below_min_value", "entropy_bound"),
        ({"echo": True, "logprobs": 1}, "unsupported_parameter", "echo"),
    ],
)
async def test_values_that_cannot_be(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any], code: str, param: str
) -> None:
    engine.denoise(8)
    answer = await ask(client, "/v1/completions", fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
