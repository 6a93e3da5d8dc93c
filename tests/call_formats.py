"""Ways to write calls that tests share, and what a model of one of them would write."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.bundle.answer_format import AnswerFormat, CallFormat, JsonArguments, Markers, TaggedArguments

JSON = JsonArguments()
THINK = Markers("<think>", "</think>")
HERMES = CallFormat('<tool_call>\n{"name": "', '", "arguments": ', JSON, "}\n</tool_call>", between="\n")
MISTRAL = CallFormat('{"name": "', '", "arguments": ', JSON, "}", "[TOOL_CALLS][", ", ", "]")
PHI = CallFormat('{"name": "', '", "arguments": ', JSON, "}", "<|tool_call|>[", ", ", "]<|/tool_call|>")
LLAMA = CallFormat('{"name": "', '", "parameters": ', JSON, "}", between="; ")
KINDS = ("string", "integer", "number", "boolean", "null", "object", "array")
CODER = CallFormat(
    "<tool_call>\n<function=",
    ">\n",
    TaggedArguments("<parameter=", dict.fromkeys(KINDS, ">\n"), "\n</parameter>\n"),
    "</function>\n</tool_call>",
    between="\n",
)


def answers(calls: CallFormat, reasoning: Markers | None = None) -> AnswerFormat:
    """An answer format with nothing but these."""
    return AnswerFormat(reasoning=reasoning, calls=calls)


def cuts(text: str) -> Iterator[list[str]]:
    """A text whole, by the character, and in two at every place."""
    yield [text]
    yield list(text)
    for cut in range(1, len(text)):
        yield [text[:cut], text[cut:]]


def written(form: CallFormat, called: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Calls as a model of this format writes them."""
    texts = [f"{form.begin}{name}{form.named}{_arguments(form, given)}{form.end}" for name, given in called]
    return form.opening + (form.between or "").join(texts) + form.closing


def _arguments(form: CallFormat, given: Mapping[str, Any]) -> str:
    tags = form.arguments
    if not isinstance(tags, TaggedArguments):
        return json.dumps(given, ensure_ascii=False)
    return "".join(
        f"{tags.before}{key}{tags.assign['string']}{_value(value)}{tags.after}" for key, value in given.items()
    )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
