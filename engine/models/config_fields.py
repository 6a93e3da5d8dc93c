"""Reading config.json as what it is: an untrusted file. Every value is checked before anything is sized by it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeGuard, cast

from engine.errors import CompileError, HexserveError
from engine.files import JSON_BYTES, brief, read_json


class ConfigFields:
    """Typed look-ups in one JSON object; `error` names the key and the limit. A JSON null counts as absent. inside:
    where in the file the object stands, as "rope_parameters."; "" = it is the whole. prefix: of all keys."""

    error: type[HexserveError] = CompileError

    def __init__(
        self, values: Mapping[str, object], path: str = "config.json", inside: str = "", prefix: str = ""
    ) -> None:
        self.values = values
        self._path, self._inside, self._prefix = path, inside, prefix

    def key(self, key: str) -> str:
        """A key as it stands in the file."""
        return self._inside + self._prefix + key

    def place(self, key: str) -> str:
        """The same behind the name of the file."""
        return f"{self._path}: {self.key(key)}"

    def raw(self, key: str) -> object | None:
        """The value as it stands, None when absent."""
        return self.values.get(self._prefix + key)

    def has(self, key: str) -> bool:
        return self.raw(key) is not None

    def names(self) -> tuple[str, ...]:
        """What is there, null or not."""
        return tuple(self.values)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from low to high; a whole float such as 10000.0 is accepted."""
        value = self._present(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._refused(key, f"an integer from {low} to {high}", value)
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number from low to high, int or float."""
        value = self._present(key, default)
        if not _is_between(value, low, high):
            raise self._refused(key, f"a number from {low} to {high}", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A JSON boolean."""
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self._refused(key, "true or false", value)
        return value

    def text(self, key: str, default: str) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self._refused(key, "a string", value)
        return value

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of exactly `count` numbers from low to high."""
        value = self._present(key, None)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(f"{self.place(key)} must be a list of {count} numbers")
        for item in value:
            if not _is_between(item, low, high):
                raise self.error(f"{self.place(key)} holds {brief(item)}, allowed are numbers from {low} to {high}")
        return tuple(float(item) for item in value)

    def group(self, key: str) -> Self | None:
        """A nested object, None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._refused(key, "an object", value)
        return type(self)(cast(Mapping[str, object], value), self._path, f"{self.key(key)}.")

    def _present(self, key: str, default: object | None) -> object:
        value = default if self.raw(key) is None else self.raw(key)
        if value is None:
            raise self.error(f"{self.place(key)} is missing")
        return value

    def _refused(self, key: str, wanted: str, value: object) -> HexserveError:
        return self.error(f"{self.place(key)} must be {wanted}, it is {brief(value)}")


def architectures_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """The classes that a config.json names."""
    listed = config.get("architectures")
    return tuple(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else ()


def config_of(folder: Path) -> Mapping[str, object]:
    """Of a folder; {} where it cannot be read: what is wrong is told when the checkpoint is read in earnest."""
    try:
        config = read_json(folder / "config.json", JSON_BYTES)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _is_between(value: object, low: float, high: float) -> TypeGuard[int | float]:
    # False for NaN; an integer may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


LARGEST_IN_FLOAT = 2 << 30  # bytes
INT8_SHARE = 1.125 / 4  # a byte and the 32nd part of a float32 scale for each float32 weight
MEMORY_SHARE, FLOAT_SHARE = 0.5, 0.25
LEAST_STEPS = 8.0  # a second: people read 5 or 6 tokens, and a step does more than read weights


def quant_by_size(float_bytes: int, rounded: str) -> str:
    """The method unless asked otherwise: `fp32` for small models, else `rounded`. float_bytes: weights as float32."""
    return "fp32" if float_bytes <= LARGEST_IN_FLOAT else rounded


def four_bits_because(float_bytes: int, machine: int, rate: float = 0.0) -> str:
    """Why a model that generates has 4 bits unless asked otherwise; "" = it has 8, which lose next to nothing. machine:
    its memory in bytes; rate: bytes of it that are read in a second, as each step reads all weights; 0 = not known."""
    stored = float_bytes * INT8_SHARE
    if machine and stored > MEMORY_SHARE * machine:
        return f"8 bits a weight would take more than half of the memory, {machine / 1e9:.1f} GB"
    if rate and stored * LEAST_STEPS > rate:
        speed = f"{rate / stored:.1f} tokens a second of memory that reads {rate / 1e9:.0f} GB"
        return f"8 bits a weight would give {speed}"
    return ""


def keeps_floats(float_bytes: int, machine: int) -> bool:
    """Whether a file of floats (0 bytes = it is none) stays in float32: nothing is rounded where memory is plenty."""
    return float_bytes > 0 and (not machine or float_bytes <= FLOAT_SHARE * machine)
