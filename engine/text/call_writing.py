"""Calls of a conversation as text, for templates that show tools and render no calls."""

import json
from collections.abc import Mapping
from typing import Any

from engine.bundle.answer_format import CallFormat, LiteralArguments


def with_written_calls(message: Mapping[str, Any], form: CallFormat) -> Mapping[str, Any]:
    """The message with its calls behind its text. Content is a text or parts; arguments are an object, or any text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = (form.between or "").join(_written(call["function"], form) for call in calls)
    text, content = f"{form.opening}{written}{form.closing}", message["content"]
    return {**message, "content": content + (text if isinstance(content, str) else [{"type": "text", "text": text}])}


def _written(function: Mapping[str, Any], form: CallFormat) -> str:
    given = function.get("arguments") or {}
    if not isinstance(given, Mapping):
        arguments = str(given)
    elif isinstance(style := form.arguments, LiteralArguments):
        pairs = (f"{key}{style.assign}{_literal(value, style)}" for key, value in given.items())
        arguments = style.between.join(pairs)
    else:
        arguments = json.dumps(given, ensure_ascii=False)
    return f"{form.begin}{function.get('name', '')}{form.named}{arguments}{form.end}"


def _literal(value: Any, style: LiteralArguments) -> str:
    """As the template of LFM2.5-8B-A1B writes it, which renders calls: objects are JSON."""
    if isinstance(value, str) and style.is_raw:
        return f"{style.quote}{value}{style.quote}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else repr(value)
