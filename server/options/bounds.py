"""A setting as its dataclass field holds it: what it means and which values it takes."""

from dataclasses import dataclass, field
from typing import Any

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a setting means and which numbers it takes (inclusive; None = no bound).

    choices: the words it may be, in any case. is_required: text that may not be empty. is_repeatable: a list with
    commas, of which a flag may be given for each part.
    """

    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    is_secret: bool = False  # never a flag: command lines are seen by everyone on the machine
    is_required: bool = False
    is_repeatable: bool = False


NO_BOUNDS = Bounds("")


def setting(default: Value, help: str, low: float | None = None, high: float | None = None) -> Any:
    """The field of a setting."""
    return field(default=default, metadata={"bounds": Bounds(help, low, high)})


def chosen(default: str, help: str, choices: tuple[str, ...]) -> Any:
    """The field of a setting that is one of some words."""
    return field(default=default, metadata={"bounds": Bounds(help, choices=choices)})


def secret(help: str) -> Any:
    """The field of a setting that nobody may see."""
    return field(default="", repr=False, metadata={"bounds": Bounds(help, is_secret=True)})


def required(default: str, help: str) -> Any:
    """The field of a text that may not be empty."""
    return field(default=default, metadata={"bounds": Bounds(help, is_required=True)})
