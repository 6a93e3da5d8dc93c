"""The shape of one training sample and its rendering in ChatML."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOOL_PREAMBLE = "# Tools\n\nYou may call functions to help the user. They are listed as JSON:\n<tools>"
TOOL_CLOSING = (
    "\n</tools>\n\nTo call a function, answer with its name and arguments:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


@dataclass(frozen=True)
class SampleCall:
    """One function call made by the assistant."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str = ""
    calls: tuple[SampleCall, ...] = ()


@dataclass(frozen=True)
class Sample:
    """A conversation, or a plain document where `document` is set."""

    turns: tuple[Turn, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    document: str = ""


@dataclass(frozen=True)
class Span:
    """A stretch of rendered text, and whether the model learns to produce it."""

    text: str
    learned: bool


def exchange(question: str, answer: str) -> Sample:
    """Make a conversation of one question and its answer."""
    return Sample((Turn("user", question), Turn("assistant", answer)))


def render(sample: Sample) -> list[Span]:
    """Render a sample as the chat template does, split where learning starts and stops."""
    if sample.document:
        return [Span(sample.document + "<|endoftext|>", True)]
    spans: list[Span] = []
    turns = list(sample.turns)
    system = turns.pop(0).content if turns and turns[0].role == "system" else ""
    if system or sample.tools:
        spans.append(Span(f"<|im_start|>system\n{_system_text(system, sample)}<|im_end|>\n", False))
    for index, turn in enumerate(turns):
        spans.extend(_turn_spans(turns, index, turn))
    return spans


def prompt_text(sample: Sample) -> str:
    """Render everything before the sample's last assistant turn, with the generation prompt."""
    spans = render(sample)
    last = max(index for index, span in enumerate(spans) if span.learned)
    return "".join(span.text for span in spans[:last])


def _system_text(system: str, sample: Sample) -> str:
    if not sample.tools:
        return system
    lines = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in sample.tools)
    return (system + "\n\n" if system else "") + TOOL_PREAMBLE + lines + TOOL_CLOSING


def _turn_spans(turns: list[Turn], index: int, turn: Turn) -> list[Span]:
    if turn.role == "assistant":
        calls = "\n".join(_call_text(call) for call in turn.calls)
        joint = "\n" if turn.content and calls else ""
        return [
            Span("<|im_start|>assistant\n", False),
            Span(turn.content + joint + calls + "<|im_end|>", True),
            Span("\n", False),
        ]
    if turn.role != "tool":
        return [Span(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n", False)]
    opens = index == 0 or turns[index - 1].role != "tool"
    closes = index + 1 == len(turns) or turns[index + 1].role != "tool"
    text = "<|im_start|>user" if opens else ""
    text += f"\n<tool_response>\n{turn.content}\n</tool_response>"
    return [Span(text + ("<|im_end|>\n" if closes else ""), False)]


def _call_text(call: SampleCall) -> str:
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
