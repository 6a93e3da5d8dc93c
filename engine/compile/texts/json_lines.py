"""One line of a JSON lines file: a text, or a conversation. Pure."""

import json
from collections.abc import Mapping
from typing import Any, cast

from engine.compile.texts.chats import CalibrationChat
from engine.errors import InvalidRequest
from engine.files.content import brief, one_line
from engine.text.prompt import normalise_message

FORMS = 'a string, {"text": ...} or {"messages": [...]}'


class LineRefused(ValueError):
    """A line that says neither; `str(error)` is the reason, with the field."""


def is_json_line(line: bytes) -> bool:
    """Whether plain text can be told from JSON lines by this first line: an object with a text or messages."""
    try:
        value = _parsed(line)
    except LineRefused:
        return False
    return isinstance(value, dict) and ("text" in value or "messages" in value)


def read_line(line: bytes) -> str | CalibrationChat:
    """A text or a conversation; fields of other names are for others. LineRefused."""
    value = _parsed(line)
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise LineRefused(f"it must be {FORMS}, not {brief(value)}")
    if "text" in value and "messages" in value:
        raise LineRefused("it has both 'text' and 'messages'")
    if "messages" in value:
        return CalibrationChat(_messages(value["messages"]), _tools(value.get("tools")))
    if not isinstance(value.get("text"), str):
        found = f"'text' is {brief(value['text'])}" if "text" in value else f"its fields are {brief(sorted(value))}"
        raise LineRefused(f"it must be {FORMS}; {found}")
    return cast(str, value["text"])


def _parsed(line: bytes) -> object:
    try:
        return cast(object, json.loads(line.removeprefix(b"\xef\xbb\xbf").decode("utf-8")))
    except UnicodeDecodeError as error:
        raise LineRefused(f"it is not UTF-8 (byte {error.start} of the line)") from None
    except RecursionError:
        raise LineRefused("it is nested too deeply") from None
    except ValueError as error:
        raise LineRefused(f"it is not JSON: {one_line(error)}") from None


def _messages(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        raise LineRefused(f"'messages' must be a list of at least one message, it is {brief(value)}")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(value)]


def _message(item: object, place: str) -> Mapping[str, Any]:
    if not isinstance(item, dict):
        raise LineRefused(f"'{place}' must be an object, it is {brief(item)}")
    if not isinstance(item.get("role"), str):
        raise LineRefused(f"'{place}.role' must be a string, it is {brief(item.get('role'))}")
    if item.get("tool_calls") is not None and not isinstance(item["tool_calls"], list):
        raise LineRefused(f"'{place}.tool_calls' must be a list, it is {brief(item['tool_calls'])}")
    if item.get("content") is None and not item.get("tool_calls"):
        raise LineRefused(f"'{place}.content' is missing")
    try:
        return normalise_message(item, place)
    except InvalidRequest as error:
        raise LineRefused(str(error)) from None


def _tools(value: object) -> list[Mapping[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise LineRefused(f"'tools' must be a list of objects, it is {brief(value)}")
    return value or None
