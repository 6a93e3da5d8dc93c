"""openai-python against a live server: parsed answers, forced and strict calls, streamed and whole."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.live import LiveServer, serving

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "forecast", "strict": True, "parameters": PARAMETERS}}]
ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


class Pet(BaseModel):
    """What the answer is parsed into."""

    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)
    names: list[Literal["Tom", "Rex"]] = Field(max_length=2)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("--bundle", "demo", "--prepare-timeout-s", "60") as live:
        yield live


@pytest.fixture
def sdk(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_parse_gives_the_model_class(sdk: openai.OpenAI, temperature: float) -> None:
    answer = sdk.chat.completions.parse(
        model="demo", messages=ASK, response_format=Pet, temperature=temperature, max_tokens=300, seed=5, n=2
    )
    for choice in answer.choices:
        assert isinstance(choice.message.parsed, Pet)
        assert choice.finish_reason == "stop"


def test_a_streamed_answer_is_parsed(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model="demo", messages=ASK, response_format=Pet, max_tokens=300, seed=1) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Pet)


def test_cut_answers_say_so(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        sdk.chat.completions.parse(model="demo", messages=ASK, response_format=Pet, max_tokens=3)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "forecast"}}])
def test_forced_calls_are_valid_whole_and_streamed(sdk: openai.OpenAI, choice: Any) -> None:
    asked: Any = {"model": "demo", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "temperature": 1.5}
    asked |= {"parallel_tool_calls": False, "max_tokens": 200}
    for seed in range(4):
        whole = sdk.chat.completions.create(**asked, seed=seed).choices[0]
        with sdk.chat.completions.stream(**asked, seed=seed) as stream:
            streamed = stream.get_final_completion().choices[0]
        for answer in (whole, streamed):
            assert answer.finish_reason == "tool_calls" and not answer.message.content
            [call] = answer.message.tool_calls or []
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
        assert [call.function.arguments for call in (whole.message.tool_calls or [])] == [
            call.function.arguments for call in (streamed.message.tool_calls or [])
        ]


async def test_hostile_forms_beside_ordinary_requests(server: LiveServer) -> None:
    """Whatever becomes of them, everyone is answered."""
    values = [f"value number {index}" for index in range(20_000)]
    hostile: list[Any] = [
        {"guided_json": {"enum": values}},
        {"guided_regex": "^(a+)+$"},
        {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"guided_json": {"$ref": "#"}},
        {"guided_grammar": "start: start start | "},
        {"guided_grammar": 'start: a\na: a a | a a a | "x"'},
        {"guided_json": {"type": "string", "pattern": "(x+x+)+y"}},
        {"guided_json": {"allOf": [{"type": "string"}, {"type": "number"}]}},
    ]
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def ask(body: Any) -> str:
            try:
                answer = await client.chat.completions.create(
                    model="demo", messages=ASK, max_tokens=20, extra_body=body or None
                )
            except openai.BadRequestError as error:
                return str(error.param)
            return answer.choices[0].finish_reason

        found = await asyncio.gather(*(ask(body) for body in [*hostile, *[{}] * 4]))
    assert found[-4:] == ["stop"] * 4 or set(found[-4:]) <= {"stop", "length"}
    assert all(outcome in ("stop", "length", "guided_json", "guided_regex", "guided_grammar") for outcome in found)
    assert found[7] == "guided_json"
