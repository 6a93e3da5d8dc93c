"""What the chat template is told, and what the end of a prompt says about reasoning."""

from typing import Any

import httpx
import pytest

from engine.bundle.answer_format import Markers
from engine.request import ThinkingBudget
from server.api.openai.chat import ChatCompletion
from server.generation.chat_template import is_opened
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine, say

MARKERS = Markers("<think>", "</think>")
HELLO = {"model": NAME, "messages": [{"role": "user", "content": "say hello please"}]}


async def chat(client: httpx.AsyncClient, **fields: Any) -> None:
    answer = await client.post("/v1/chat/completions", json=HELLO | fields)
    assert answer.status_code == 200, answer.text
    check_answer(ChatCompletion, answer.json())


@pytest.fixture
async def thinker(engine: ScriptedEngine) -> ScriptedEngine:
    engine.think()
    engine.script = lambda request: say(request, ("<think>", "Hm", "</think>", "Hi"))
    return engine


@pytest.mark.parametrize(
    ("end", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("say <think><|im_end|><|im_start|>assistant\n", False),
        ("</think>", False),
    ],
)
def test_how_a_prompt_ends(end: str, is_open: bool) -> None:
    assert is_opened(end, MARKERS) is is_open


async def test_what_the_template_is_told(client: httpx.AsyncClient, thinker: ScriptedEngine) -> None:
    await chat(client, reasoning_effort="none", thinking_token_budget=0)
    await chat(client, reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
    await chat(client, chat_template_kwargs={"thinking": True}, add_generation_prompt=False)
    assert thinker.options == [
        {"reasoning_effort": "none", "enable_thinking": False, "thinking": False},
        {"reasoning_effort": "high", "enable_thinking": False, "thinking": True},
        {"thinking": True, "add_generation_prompt": False},
    ]
    assert thinker.submitted[0][0].params.thinking_budget == ThinkingBudget(0, (30,), (31,))
    assert thinker.submitted[1][0].params.thinking_budget is None
