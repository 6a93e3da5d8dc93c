"""Every chat template of llama.cpp with tools: what a tool answered and what was said beside a call are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.chat_templates import Called, loaded
from tests.real.written_calls import TEMPLATES

CALLED: list[Called] = [("get_weather", {"text": "probe"}), ("send-mail", {"text": "other"})]
ANSWERS = ('{"celsius": 17, "text": "é 日本"}', "It was sent\nto <b>all</b>.")
SAID = "I look at the weather."
# Templates that have no place for text beside a call.
LEAVES_OUT_TEXT = {
    "Cohere2MoE",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "MiniMax-M1",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "llama-cpp-deepseek-r1",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "muse-glimmer",
    "upstage-Solar-Open-100B",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_tool_answered_is_in_the_prompt(llama_cpp_models: Path, name: str) -> None:
    """As it is or, where answers are JSON, as a string of that, behind the call."""
    template = loaded(llama_cpp_models, name)
    message = template.calling(CALLED[: 2 if TEMPLATES[name].several else 1])
    answers: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": call["id"], "content": answer}
        for call, answer in zip(message["tool_calls"], ANSWERS, strict=False)
    ]
    text = template.rendered([message, *answers], add_generation_prompt=True)
    places = [max(text.find(answer), text.find(json.dumps(answer, ensure_ascii=False))) for answer in ANSWERS]
    assert all(place >= 0 for place in places[: len(answers)])
    assert text.index("get_weather") < places[0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_was_said_beside_a_call_is_in_the_prompt(llama_cpp_models: Path, name: str) -> None:
    """A call is never lost for it."""
    template = loaded(llama_cpp_models, name)
    text = template.rendered([template.calling(CALLED[:1], content=SAID)])
    assert text.count(SAID) == (name not in LEAVES_OUT_TEXT)
    assert "get_weather" in text
