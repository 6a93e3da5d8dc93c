"""What a GGUF file says under its architecture's name: metadata of the type and within the bounds asked for."""

import numpy as np

from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import CompileError
from engine.files import brief
from engine.models.config_fields import ConfigFields


class ArchitectureFields:
    """Typed look-ups; CompileError names the file, the key and the limit."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.title, self.name = header.path.name, architecture
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

    def has(self, key: str) -> bool:
        """Whether the file says it."""
        return self.key(key) in self._facts

    def is_array(self, key: str) -> bool:
        """Whether it is several values."""
        return isinstance(self._facts.get(self.key(key)), np.ndarray)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from low to high."""
        return self._fields.integer(self.key(key), low, high, default)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from low to high."""
        return self._fields.number(self.key(key), low, high, default)

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        return self._fields.flag(self.key(key), default)

    def text(self, key: str, default: str) -> str:
        """A string."""
        return self._fields.text(self.key(key), default)

    def each(self, key: str, count: int, low: int, high: int, default: int | None = None) -> tuple[int, ...]:
        """An integer for each of so many layers: an array of them, or one for all."""
        value = self._facts.get(self.key(key))
        if not isinstance(value, np.ndarray):
            return (self.integer(key, low, high, default),) * count
        listed = value.tolist()
        if len(listed) != count or not all(isinstance(item, int) and low <= item <= high for item in listed):
            shown = brief(listed[:9])
            raise CompileError(
                f"{self.title}: {self.key(key)} must be {count} integers from {low} to {high}, it is {shown}"
            )
        return tuple(listed)

    def flags(self, key: str, count: int) -> tuple[bool, ...] | None:
        """An array of exactly `count` truth values, None when there is none."""
        value = self._facts.get(self.key(key))
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != count or not np.isin(value, (0, 1)).all():
            shown = brief(value[:9].tolist() if isinstance(value, np.ndarray) else value)
            raise CompileError(f"{self.title}: {self.key(key)} must be {count} truth values, it is {shown}")
        return tuple(bool(flag) for flag in value)

    def reals(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """An array of exactly `count` numbers from low to high."""
        value = self._facts.get(self.key(key))
        found = tuple(map(float, value.tolist())) if isinstance(value, np.ndarray) and len(value) == count else ()
        if len(found) != count or not all(low <= number <= high for number in found):
            raise CompileError(f"{self.title}: {self.key(key)} must be {count} numbers from {low} to {high}")
        return found

    def counts(self, key: str, count: int) -> tuple[int, ...]:
        """An array of exactly `count` numbers from 0 to 1024."""
        value = self._facts.get(self.key(key))
        is_right = isinstance(value, np.ndarray) and len(value) == count and value.dtype.kind in "iu"
        if not isinstance(value, np.ndarray) or not is_right or value.min() < 0 or value.max() > 1024:
            raise CompileError(f"{self.title}: {self.key(key)} must be {count} numbers from 0 to 1024")
        return tuple(map(int, value))
