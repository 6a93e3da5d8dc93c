"""Typed look-ups in nested JSON of foreign files; every error names the file and the dotted key."""

from collections.abc import Mapping
from pathlib import Path

from engine.errors import BundleError
from engine.files.content import brief, read_json
from engine.files.opening import JSON_BYTES, shown


class Fields:
    """One JSON object. `where` names it in messages, as in 'genie_config.json: dialog.engine'."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self._where = where

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def group(self, key: str) -> "Fields":
        """An object; an absent one is empty."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise BundleError(f"{self._name(key)} must be an object, it is {brief(value)}")
        return Fields(value, self._name(key))

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise BundleError(f"{self._name(key)} must be a string, it is {brief(value)}")
        return value

    def integer(self, key: str, low: int, high: int, default: int) -> int:
        """An integer from low to high."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BundleError(f"{self._name(key)} must be an integer from {low} to {high}, it is {brief(value)}")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """An integer or a list of them, none negative; () when absent. -1, which means none, is left out."""
        value = self.values.get(key)
        every: list[object] = value if isinstance(value, list) else [] if value is None else [value]
        items = [item for item in every if isinstance(item, int) and not isinstance(item, bool) and item >= -1]
        if len(items) < len(every):
            raise BundleError(f"{self._name(key)} must be an integer or a list of them, it is {brief(value)}")
        return tuple(item for item in items if item >= 0)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; () when absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise BundleError(f"{self._name(key)} must be a list of strings")
        return tuple(value)

    def _name(self, key: str) -> str:
        return f"{self._where}{key}" if self._where.endswith(" ") else f"{self._where}.{key}"


def load_fields(path: Path, limit: int = JSON_BYTES) -> Fields:
    """The JSON object in a file; BundleError when it cannot be read or is not one."""
    try:
        value = read_json(path, limit)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {shown(error)}") from error
    if not isinstance(value, dict):
        raise BundleError(f"{path} must hold a JSON object")
    return Fields(value, f"{path.name}: ")


def load_optional(path: Path) -> Fields:
    """The same, empty when there is no such file."""
    return load_fields(path) if path.exists() else Fields({}, f"{path.name}: ")
