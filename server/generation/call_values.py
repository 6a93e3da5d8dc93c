"""Values of arguments that a model wrote as JSON, as literals of Python or as nested tags."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from engine.grammar.spec import Types, allows, resolved, types_of

DEEPEST = 64
PYTHON_QUOTES = ("'", '"')
_WORDS = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}


def whole_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, None when it is none: cut, or wrong."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None


def as_json(value: Any) -> str:
    """JSON text of a value, with Unicode as it is."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def read_value(text: str, types: Types | None) -> Any:
    """The value of a text that is JSON or a literal of Python of one of these types, else the text itself."""
    if types == frozenset(("string",)):
        return text
    for read in (_strict_json, read_literal):
        try:
            value = read(text.strip())
        except (ValueError, RecursionError):
            continue
        if allows(types, value):
            return value
    return text


def read_literal(text: str, quote: str = "") -> Any:
    """The value of a literal; strings are in `quote`, without escapes, or in Python's. ValueError for anything else."""

    def rewritten(token: re.Match[str]) -> str:
        """A token as JSON writes it."""
        if token["string"] is not None:
            inside = token["string"]
            return as_json(
                inside[len(quote) : -len(quote)] if _is_raw(quote) else _ESCAPE.sub(_unescaped, inside[1:-1])
            )
        if token["key"] is not None:
            return as_json(token["key"])
        return "" if token[0] == "," else _WORDS[token[0]]

    return _strict_json(_tokens(quote).sub(rewritten, text))


def _is_raw(quote: str) -> bool:
    return quote not in ("", *PYTHON_QUOTES)


@lru_cache
def _tokens(quote: str) -> re.Pattern[str]:
    """What literals have and JSON has not: strings, keys without quotes, words, tuples, a comma behind the last."""
    own = re.escape(quote)
    string = f"{own}.*?{own}" if _is_raw(quote) else r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
    key = r"""(?<=[{,\s])[^\s"'()\[\]{},:](?:[^"'()\[\]{},:]*[^\s"'()\[\]{},:])?(?=\s*:)"""
    return re.compile(rf"(?P<string>{string})|(?P<key>{key})|\b(?:True|False|None)\b|[()]|,(?=\s*[)\]}}])", re.DOTALL)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is not None:
        number = int(code, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
    return _PLAIN_ESCAPES.get(escape[4], escape[4] if escape[4] in "\\'\"/" else "\\" + escape[4])


def _strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def read_elements(text: str, before: str, item: str, schema: Any, root: Any, depth: int = 0) -> Any:
    """The value of nested tags, each with `before` in front of its `<`; entries of a list have the tag `item`."""
    opening = re.compile(re.escape(before) + r"<(\w[^<>\s]*)>")
    schema = resolved(schema, root)
    known: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    types = types_of(schema, root)
    rest = text.lstrip()
    if opening.match(rest) is None or depth > DEEPEST:
        if not text and types is not None and not types & {"string", "null"}:
            return [] if "array" in types else {}
        return read_value(text, types)
    found: list[tuple[str, Any]] = []
    while (head := opening.match(rest)) is not None:
        inside, rest = _element(rest[head.end() :], head[1], before)
        inner = known.get("items") if head[1] == item else (known.get("properties") or {}).get(head[1])
        found.append((head[1], read_elements(inside, before, item, inner, root, depth + 1)))
    if {name for name, _ in found} == {item} and "object" not in (types or ()):
        return [value for _, value in found]
    return dict(found)


def _element(text: str, name: str, before: str) -> tuple[str, str]:
    """What is inside an element whose opening tag was read, and what follows it."""
    depth = 1
    for tag in re.finditer(re.escape(before) + rf"<(/?){re.escape(name)}>", text):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return text[: tag.start()], text[tag.end() :].lstrip()
    return text, ""
