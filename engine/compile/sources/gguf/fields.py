"""What a GGUF file says under its architecture's name: metadata of the type and within the bounds asked for."""

import numpy as np

from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import CompileError
from engine.files import brief
from engine.models.config_fields import ConfigFields

MOST_ITEMS = 1025  # of an array: one for each layer, and one more where there are too many


class ArchitectureFields(ConfigFields):
    """As `ConfigFields`, by keys without the architecture's name. title: of the file."""

    def __init__(self, header: GgufHeader, architecture: str) -> None:
        self.title, self.name = header.path.name, architecture
        prefix = f"{architecture}."
        found = {key: value for key, value in header.metadata.items() if key.startswith(prefix)}
        plain = {
            key: value[:MOST_ITEMS].tolist() if isinstance(value, np.ndarray) else value for key, value in found.items()
        }
        super().__init__(plain, self.title, prefix=prefix)

    def is_array(self, key: str) -> bool:
        """Whether it is several values."""
        return isinstance(self.raw(key), list)

    def each(self, key: str, count: int, low: int, high: int, default: int | None = None) -> tuple[int, ...]:
        """An integer for each of so many layers: an array of them, or one for all."""
        listed = self.raw(key)
        if not isinstance(listed, list):
            return (self.integer(key, low, high, default),) * count
        if len(listed) != count or not all(isinstance(item, int) and low <= item <= high for item in listed):
            found = brief(listed[:9])
            raise CompileError(f"{self.title}: {self.key(key)} must be {count} integers from {low} to {high}: {found}")
        return tuple(listed)

    def flags(self, key: str, count: int) -> tuple[bool, ...] | None:
        """A truth value for each of so many layers, None when there is none."""
        return tuple(map(bool, self.each(key, count, 0, 1))) if self.has(key) else None
