"""Every generation parameter at once through openai-python, on real graphs; a plain neighbour notices nothing."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.live import LiveServer, serving

PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 2.0},
    {"top_p": 0.0},
    {"frequency_penalty": 2.0, "presence_penalty": -2.0},
    {"logit_bias": {"5": -100, "300": 5}},
    {"seed": -(2**63)},
    {"stop": [*"aeioubcdfghjklmn"]},
    {"n": 3, "temperature": 1.0},
    {"logprobs": True, "top_logprobs": 20},
    {"reasoning_effort": "none"},
    {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "me"},
    {"extra_body": {"top_k": 1}},
    {"extra_body": {"min_p": 0.5, "repetition_penalty": 1.5}},
    {"extra_body": {"min_tokens": 8, "ignore_eos": True}},
    {"extra_body": {"stop_token_ids": [300], "include_stop_str_in_output": True, "skip_special_tokens": False}},
    {"extra_body": {"truncate_prompt_tokens": 8, "priority": -1}},
    {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]
FULL = {"ignore_eos": True}
ASKED: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("--bundle", "demo", "--deterministic", "--kv-slots", "1536", "--lookup-rows", "4") as live:
        yield live


async def ask(client: AsyncOpenAI, model: str, stream: bool, **fields: Any) -> str:
    """The text of the first choice."""
    if not stream:
        fields.pop("stream_options", None)
        answer = await client.chat.completions.create(model=model, messages=ASKED, max_tokens=12, **fields)
        assert answer.usage is not None and answer.usage.prompt_tokens > 0
        return answer.choices[0].message.content or ""
    chunks = await client.chat.completions.create(model=model, messages=ASKED, max_tokens=12, stream=True, **fields)
    seen = [choice async for chunk in chunks for choice in chunk.choices if choice.index == 0]
    assert [choice.finish_reason for choice in seen][-1] in ("stop", "length")
    return "".join(choice.delta.content or "" for choice in seen)


async def test_all_at_once(server: LiveServer) -> None:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        model = (await client.models.list()).data[0].id
        alone = await ask(client, model, False, temperature=0)
        plain = [ask(client, model, stream, temperature=0) for stream in (False, True)]
        odd = [ask(client, model, stream, **fields) for fields in PARAMETERS for stream in (False, True)]
        texts = await asyncio.gather(*plain, *odd)
        assert texts[:2] == [alone, alone]
        response = await client.responses.create(model=model, input=ASKED, max_output_tokens=12, temperature=0)
        assert response.output_text == alone
        async with client.responses.stream(model=model, input=ASKED, max_output_tokens=12, temperature=0) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == alone
        best = await client.completions.create(
            model=model, prompt="The", n=2, best_of=4, max_tokens=4, seed=1, extra_body=FULL
        )
        assert len(best.choices) == 2 and best.usage is not None and best.usage.completion_tokens == 16
        echoed = await client.completions.create(model=model, prompt="The cat", echo=True, max_tokens=0, logprobs=0)
        assert echoed.choices[0].text == "The cat"
