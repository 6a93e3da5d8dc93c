"""Metadata below the name of a file's architecture, every value checked before anything is sized by it."""

import numpy as np

from engine.compile.gguf.header import GgufHeader
from engine.errors import CompileError
from engine.files.content import brief
from engine.models.config_fields import ConfigFields


class ArchitectureFields:
    """Typed look-ups; CompileError names the file, the key and the limit."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.title = header.path.name
        self._prefix = f"{architecture}."
        self._facts = {key: value for key, value in header.metadata.items() if key.startswith(self._prefix)}
        # Where a number is wanted an array is refused, in a sentence that needs no more than its beginning.
        short = {
            key: value[:9].tolist() if isinstance(value, np.ndarray) else value for key, value in self._facts.items()
        }
        self._fields = ConfigFields(short, self.title)

    def key(self, key: str) -> str:
        """A key as it stands in the file."""
        return self._prefix + key

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from low to high."""
        return self._fields.integer(self.key(key), low, high, default)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from low to high."""
        return self._fields.number(self.key(key), low, high, default)

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self._fields.text(self.key(key), default)

    def flags(self, key: str, count: int) -> tuple[bool, ...] | None:
        """An array of exactly `count` truth values, None when there is none."""
        value = self._facts.get(self.key(key))
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != count or not np.isin(value, (0, 1)).all():
            shown = brief(value[:9].tolist() if isinstance(value, np.ndarray) else value)
            raise CompileError(f"{self.title}: {self.key(key)} must be {count} truth values, it is {shown}")
        return tuple(bool(flag) for flag in value)
