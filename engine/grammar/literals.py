"""Literals of a grammar: text, and the control tokens in it, which no text of a grammar can match."""

import json
import re
from collections.abc import Mapping
from typing import Any

ANYTHING = "/(?s:.*)/"


class Unusable(ValueError):
    """The form cannot be made into a grammar; the message says why."""


class Literals:
    """Cuts texts where control tokens stand. controls: their ids by their texts."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = controls
        ordered = sorted((text for text in controls if text), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def control(self, text: str) -> int | None:
        """The id of a text that is one control token."""
        return self._controls.get(text)

    def split(self, text: str) -> list[tuple[str, int | None]]:
        """The parts of a text, each with its id if it is a control token."""
        parts: list[tuple[str, int | None]] = []
        start = 0
        for found in self._pattern.finditer(text) if self._pattern is not None else ():
            if found.start() > start:
                parts.append((text[start : found.start()], None))
            parts.append((found[0], self._controls[found[0]]))
            start = found.end()
        return [*parts, (text[start:], None)] if start < len(text) or not parts else parts

    def sequence(self, text: str) -> str:
        """A text as Lark writes it."""
        parts = self.split(text)
        return " ".join(json.dumps(part) if number is None else f"<[{number}]>" for part, number in parts)

    def has_control(self, text: str) -> bool:
        """Whether a control token is part of a text."""
        return any(number is not None for _, number in self.split(text))


def escaped(text: str) -> str:
    """A pattern of Lark's that only this text matches."""
    return re.escape(text).replace("/", r"\/")


def loaded(text: str, what: str) -> Any:
    """The value of a JSON text; Unusable names it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{what} is not JSON: {error}") from None
