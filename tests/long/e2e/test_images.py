"""Questions about images with several answers, answers in a schema, calls of tools and less detail, on real graphs."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from tests.live import serving
from tools.demo_vision.exam import MODEL, held_out
from tools.demo_vision.scenes import COLOURS

NUMBER = 2  # a question of a colour
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": list(COLOURS)}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "tell", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with serving(MODEL) as server, OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: OpenAI, with_image: bool = True, detail: str = "auto", **fields: Any) -> ChatCompletion:
    """About one scene."""
    scene, question = held_out(NUMBER)
    file = io.BytesIO()
    scene.image.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    shown: Any = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
    content: Any = [shown] * with_image + [{"type": "text", "text": question.text}]
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=60, **fields)


def test_every_choice_sees_the_image_and_it_is_counted_once(client: OpenAI) -> None:
    answer, blind = ask(client, n=3), ask(client, with_image=False)
    assert [choice.message.content for choice in answer.choices] == [held_out(NUMBER)[1].answer] * 3
    assert answer.usage is not None and blind.usage is not None
    assert answer.usage.prompt_tokens > blind.usage.prompt_tokens + 16
    assert answer.usage.prompt_tokens == ask(client).usage.prompt_tokens  # type: ignore[union-attr]


def test_an_answer_in_a_schema_one_of_a_list_and_a_call(client: OpenAI) -> None:
    """The tiny model has learnt sentences and no JSON: what it says in that is well formed only."""
    form = {"type": "json_schema", "json_schema": {"name": "seen", "schema": SCHEMA, "strict": True}}
    told = json.loads(ask(client, response_format=form).choices[0].message.content or "")
    (call,) = ask(client, tools=[TOOL], tool_choice="required").choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "tell"
    assert told["colour"] in COLOURS and json.loads(call.function.arguments)["colour"] in COLOURS
    right = held_out(NUMBER)[1].answer
    start = right.rpartition(" ")[0]
    listed = {"structured_outputs": {"choice": [f"{start} {colour}." for colour in COLOURS]}}
    assert ask(client, extra_body=listed).choices[0].message.content == right


def test_low_detail_is_no_more_tokens(client: OpenAI) -> None:
    low, high = (ask(client, detail=detail).usage for detail in ("low", "high"))
    assert low is not None and high is not None and 0 < low.prompt_tokens <= high.prompt_tokens
