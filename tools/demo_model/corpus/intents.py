"""Everyday intents for which a tool may be offered, under several names each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from tools.demo_model.corpus.words import CITIES, COLOURS, NAMES, NOUNS, invented


@dataclass(frozen=True)
class Field:
    """One parameter of a tool: the names it may have, its type, its values, what is said of it."""

    names: tuple[str, ...]
    type: str
    values: str
    about: str
    required: bool = True


@dataclass(frozen=True)
class Intent:
    """Something a user asks for, with the names a tool for it may have. fields: their keys in FIELDS."""

    names: tuple[str, ...]
    about: str
    fields: tuple[str, ...]
    requests: tuple[str, ...]
    reply: tuple[tuple[str, str], ...]


class IntentTable(msgspec.Struct, frozen=True):
    """What intents.toml holds."""

    fields: dict[str, Field]
    intents: tuple[Intent, ...]


def value(rng: Random, values: str) -> str | int:
    """Draw a value of the given sort, or one of those listed."""
    maker = _SORTS.get(values)
    return maker(rng) if maker else rng.choice(values.split("|"))


def _thing(rng: Random) -> str:
    return rng.choice(NOUNS) if rng.random() < 0.6 else f"{rng.choice(COLOURS)} {rng.choice(NOUNS)}"


def _file_name(rng: Random) -> str:
    return f"{rng.choice((rng.choice(NOUNS), invented(rng)))}.{rng.choice(('txt', 'md', 'py', 'json', 'csv'))}"


_SORTS: dict[str, Callable[[Random], str | int]] = {
    "number": lambda rng: rng.randint(1, rng.choice((9, 99, 999))),
    "city": lambda rng: rng.choice(CITIES) if rng.random() < 0.8 else invented(rng).capitalize(),
    "thing": _thing,
    "person": lambda rng: rng.choice(NAMES) if rng.random() < 0.8 else invented(rng).capitalize(),
    "time": lambda rng: f"{rng.randint(0, 23):02d}:{rng.choice((0, 15, 30, 45)):02d}",
    "file": _file_name,
    "sum": lambda rng: f"{rng.randint(1, 999)} {rng.choice('+-*/')} {rng.randint(1, 99)}",
    "invented": invented,
}

_TABLE = msgspec.toml.decode((Path(__file__).parent / "intents.toml").read_bytes(), type=IntentTable)
FIELDS, INTENTS = _TABLE.fields, _TABLE.intents
