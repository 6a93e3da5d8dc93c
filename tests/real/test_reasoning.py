"""Every chat template of llama.cpp whose model reasons: reasoning is told from text and calls, wherever it is cut."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.bundle.answer_format import AnswerFormat, Markers
from engine.text.format_table import common_start
from server.generation.chat_template import is_opened
from server.generation.parsing import AnswerParser, Thought
from tests.real.chat_templates import FUNCTIONS, UNRENDERED, Called, Template, loaded, spoken, told
from tests.real.written_calls import TEMPLATES

# Their models are shown no tools, and reason.
TOOLLESS = {
    "HuggingFaceTB-SmolLM3-3B": "<think>",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "<think>",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "<think>",
    "deepseek-ai-DeepSeek-V3.1": "<think>",
    "llama-cpp-rwkv-world": "<think>",
}
REASONING = {name: written.reasoning for name, written in TEMPLATES.items() if written.reasoning} | TOOLLESS
CLOSINGS = {
    "<|inner_prefix|>": "<|inner_suffix|>",
    "Here are my reasoning steps:": "[BEGIN FINAL RESPONSE]",
    "<think>": "</think>",
    "<seed:think>": "</seed:think>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",
    "<mm:think>": "</mm:think>",
    "<|channel>thought": "<channel|>",
    "[THINK]": "[/THINK]",
    "to=self<|message|>": "<|eom|>",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<think:opensource>": "</think:opensource>",
    "<|think|>": "<|end|>",
}
THOUGHT = 'é 日本: "I" call <b>get_weather</b>,\n\nor {"do": \'not\'}.'
SAID = "It is\n\nwarm, <i>é</i>."
CALLED: list[Called] = [("get_weather", {"text": "日本"})]
THINKS = {"enable_thinking": True, "thinking": True}


def read(answer: AnswerFormat, pieces: list[str], is_open: bool) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, text and calls of an answer that comes in pieces."""
    parser = AnswerParser(answer, schemas=FUNCTIONS, reasoning=answer.reasoning, is_open=is_open)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.feed("", is_last=True)
    return "".join(part.text for part in parts if isinstance(part, Thought)), *told(parts)


def answered(template: Template, message: dict[str, Any]) -> tuple[str, bool]:
    """What the model writes behind its prompt for a message that reasons, and whether the prompt has opened that."""
    markers = template.answer.reasoning
    assert markers is not None
    prompt = template.rendered([], add_generation_prompt=True, **THINKS)
    is_open = is_opened(prompt, markers)
    turn = template.rendered([message | {"reasoning_content": THOUGHT}], **THINKS)
    if THOUGHT not in turn:  # the template cuts reasoning out of what was said before
        turn = template.rendered([message], **THINKS)
        said = turn[len(common_start(turn, prompt)) :].rpartition(markers.closing)[2]
        return f"{'' if is_open else markers.opening}\n{THOUGHT}\n{markers.closing}\n\n{said.lstrip()}", is_open
    start = turn.index(THOUGHT) if is_open else turn.rindex(markers.opening, 0, turn.index(THOUGHT))
    return turn[start:], is_open


def test_no_other_template_reasons(llama_cpp_models: Path) -> None:
    names = {file.stem for file in (llama_cpp_models / "templates").glob("*.jinja")}
    assert {name for name in names if loaded(llama_cpp_models, name).answer.reasoning is not None} == REASONING.keys()


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_is_read_back(llama_cpp_models: Path, name: str) -> None:
    """Reasoning with text, and with a call, whole and cut anywhere."""
    template = loaded(llama_cpp_models, name)
    answer = template.answer
    assert answer.reasoning == Markers(REASONING[name], CLOSINGS[REASONING[name]])
    text, is_open = answered(template, {"role": "assistant", "content": SAID})
    end = answer.content.closing if answer.content is not None else ""
    cases = [(text[: text.index(SAID) + len(SAID)] + end, SAID, [])]
    if answer.calls is not None and name not in UNRENDERED:
        text, _ = answered(template, template.calling(CALLED))
        cases.append((spoken(answer, text), "", [(function, given) for function, given in CALLED]))
    for text, said, called in cases:
        once = read(answer, [text], is_open)
        assert (once[0], once[1]) == (THOUGHT, said)
        assert [(function, json.loads(given)) for function, given in once[2]] == called
        assert all(read(answer, [text[:cut], text[cut:]], is_open) == once for cut in range(1, len(text)))
        assert read(answer, list(text), is_open) == once
