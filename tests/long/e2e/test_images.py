"""Questions about images with several answers, answers in a schema, calls of tools and less detail, on real graphs."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.engine.vision.judges import data_url, internvl_processor, picture, qwen_processor, smolvlm_processor
from tests.live import LiveServer, serving
from tests.long.e2e.test_image_apis import prompt_ids
from tests.vision_facts import TOKENS
from tests.vision_models import write_idefics3, write_internvl, write_qwen_vl
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


def ask(client: OpenAI, **fields: Any) -> ChatCompletion:
    """About one scene."""
    scene, question = held_out(NUMBER)
    file = io.BytesIO()
    scene.image.save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    shown: Any = {"type": "image_url", "image_url": {"url": url}}
    content: Any = [shown, {"type": "text", "text": question.text}]
    messages: Any = [{"role": "user", "content": content}]
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=60, **fields)


def test_every_choice_sees_the_image_and_it_is_counted_once(client: OpenAI) -> None:
    question = held_out(NUMBER)[1]
    answer, alone = ask(client, n=3), ask(client)
    assert [choice.message.content for choice in answer.choices] == [question.answer] * 3
    assert answer.usage is not None and alone.usage is not None
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens == len(prompt_ids(question.text))


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


IMAGE = picture(100, 60, 1)


def smolvlm_rows() -> tuple[int, int]:
    """Tokens of the image in tiles, and as one, with those that stand around them."""
    (found,) = zip(*(smolvlm_processor()([[IMAGE]])[name][0] for name in ("rows", "cols")), strict=True)
    tags = ("<fake_token_around_image>", "<image>", "<global-img>")
    tiles, whole = (get_image_prompt_string(*size, TOKENS, *tags) for size in (found, (0, 0)))
    return tokens_of(tiles), tokens_of(whole)


def tokens_of(text: str) -> int:
    """Of tags alone, and of line ends."""
    return text.count("<") + text.count("\n")


def internvl_rows() -> tuple[int, int]:
    tiles = len(internvl_processor()([IMAGE])["pixel_values"])
    return TOKENS * tiles + 2, TOKENS + 2


def qwen_rows() -> tuple[int, int]:
    """The smallest run of its graph has 64 tokens of 8 x 8 pixels."""
    whole, small = (
        int(np.prod(qwen_processor(**bounds)(IMAGE)["image_grid_thw"])) // 4
        for bounds in ({}, {"size": {"shortest_edge": 12 * 64, "longest_edge": 64 * 64}})
    )
    return whole + 2, small + 2


DETAILED: dict[str, tuple[Any, Callable[[], tuple[int, int]]]] = {
    "SmolVLM": (write_idefics3, smolvlm_rows),
    "qwen3": (write_internvl, internvl_rows),
    "Qwen3VL": (write_qwen_vl, qwen_rows),
}


@pytest.mark.parametrize("family", DETAILED)
def test_low_detail_is_fewer_tokens(family: str, tmp_path: Path) -> None:
    """As many as transformers' processor makes of the image whole, and of one tile."""
    write, rows = DETAILED[family]
    write(tmp_path / "source", family)
    arguments = CompileArguments(tmp_path / "source", tmp_path / "bundle", quant=Quant.FP32, name="tiny")
    compile_bundle(arguments, SilentProgress())
    with serving(str(tmp_path / "bundle")) as server:
        found = {detail: prompt_tokens(server, detail) for detail in (None, "auto", "high", "low")}
    whole, low = rows()
    assert found["high"] - found["low"] == whole - low > 0
    assert found[None] == found["auto"] == found["high"]


def prompt_tokens(server: LiveServer, detail: str | None) -> int:
    """Of a question about the image."""
    image = {"url": data_url(IMAGE)} | ({"detail": detail} if detail else {})
    content = [{"type": "image_url", "image_url": image}, {"type": "text", "text": "What?"}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
    return int(answer["usage"]["prompt_tokens"])
