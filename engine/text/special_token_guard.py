"""Keeps special tokens written by the caller from becoming control tokens. Pure string work.

A template mixes its own control tokens with the caller's text, and afterwards they cannot be told apart. So before
rendering, a separator (a short run of private-use characters that the request does not contain) is put behind the first
character of every special token inside the caller's strings, and inside every part of a special token at either
end of a string, because a template may join strings. What is still whole after rendering came from the template.
The tokenizer then removes the separator (`Tokenizer.encode_guarded`). Texts without such strings are not changed.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from engine.errors import InvalidRequest

_POST, _FILLER = "\ue000", "\ue001"  # private use: no vocabulary and no template gives them a meaning
DEEPEST_MESSAGE = 64
OWN_KEYS = frozenset({"role", "type"})  # the server validates their values


class SpecialTokenGuard:
    """The special tokens of one vocabulary, and how to break them apart in text of the caller."""

    def __init__(self, special_tokens: Collection[str]) -> None:
        ordered = sorted((token for token in special_tokens if token), key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._prefixes = frozenset(token[:end] for token in ordered for end in range(1, len(token)))
        self._suffixes = frozenset(token[start:] for token in ordered for start in range(1, len(token)))
        self._longest = len(ordered[0]) if ordered else 0

    def protect(self, value: Any, separator: str) -> Any:
        """A copy of messages or tools with every special token in it broken apart; roles and types stay."""
        return _map_strings(value, lambda text, is_key: self._protect_text(text, separator, is_key), 0)

    def _protect_text(self, text: str, separator: str, is_key: bool) -> str:
        if self._whole is None:
            return text
        text = self._whole.sub(lambda match: match.group()[0] + separator + match.group()[1:], text)
        if is_key:  # a template looks keys up by name; it does not join them to a control token
            return text
        return self._protect_ends(text, separator)

    def _protect_ends(self, text: str, separator: str) -> str:
        """Break an end that could be part of a special token; white space beside it may be trimmed."""
        body = text.rstrip()
        for length in range(min(len(body), self._longest - 1), 0, -1):
            if body[-length:] in self._prefixes:
                text = body + separator + text[len(body) :]
                break
        body = text.lstrip()
        for length in range(min(len(body), self._longest - 1), 0, -1):
            if body[:length] in self._suffixes:
                return text[: len(text) - len(body)] + separator + body
        return text


def choose_separator(value: Any) -> str:
    """A string that no string of `value` contains: A, then one more B than any run of Bs in it, then A."""
    longest = 0

    def look(text: str, _is_key: bool) -> str:
        nonlocal longest
        if _FILLER in text:
            longest = max(longest, *map(len, re.findall(f"{_FILLER}+", text)))
        return text

    _map_strings(value, look, 0)
    return _POST + _FILLER * (longest + 1) + _POST


def _map_strings(value: Any, change: Callable[[str, bool], str], depth: int) -> Any:
    if depth > DEEPEST_MESSAGE:
        raise InvalidRequest(f"The messages are nested deeper than {DEEPEST_MESSAGE} levels.", "messages")
    if isinstance(value, str):
        return change(value, False)
    if isinstance(value, Mapping):
        return {
            change(key, True) if isinstance(key, str) else key: (
                item if key in OWN_KEYS and isinstance(item, str) else _map_strings(item, change, depth + 1)
            )
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_map_strings(item, change, depth + 1) for item in value]
    return value
