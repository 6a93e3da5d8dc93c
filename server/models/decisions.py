"""Which models are unloaded: for the memory of another one, and because nobody asks for them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that holds memory, in bytes; when it was last used, in seconds of a monotonic clock.

    may_go: it is loaded and no request uses it. is_going: it is being unloaded, its memory is about to be free.
    """

    name: str
    size: int
    used_at_s: float
    may_go: bool
    is_going: bool = False


def fits(residents: Iterable[Resident], needed: int, budget: int) -> bool:
    """Whether `needed` bytes are free now. budget: 0 = no bound."""
    return not budget or needed + sum(resident.size for resident in residents) <= budget


def to_unload(residents: Sequence[Resident], needed: int, budget: int) -> tuple[str, ...] | None:
    """The models to unload so that `needed` bytes fit, those used least recently first.

    Empty when what is free or about to be is enough; None when requests use too much: then nothing is unloaded in vain.
    """
    staying = sum(resident.size for resident in residents if not resident.is_going)
    over = needed + staying - budget if budget else 0
    chosen: list[str] = []
    for resident in _oldest_first(residents):
        if over <= 0:
            break
        chosen.append(resident.name)
        over -= resident.size
    return tuple(chosen) if over <= 0 else None


def to_yield(ready: Iterable[Resident], others: int, needed: int, budget: int) -> frozenset[str]:
    """The ready models that would have to go if no request used them, for a model that has waited long enough.

    They take no new requests until it has its memory. others: bytes that other models keep.
    """
    found = sorted(ready, key=lambda resident: resident.used_at_s)
    over = needed + others + sum(resident.size for resident in found) - budget
    chosen: set[str] = set()
    for resident in found:
        if over <= 0:
            break
        chosen.add(resident.name)
        over -= resident.size
    return frozenset(chosen)


def idle(residents: Iterable[Resident], now_s: float, idle_s: float) -> tuple[str, ...]:
    """The models that nobody has used for `idle_s` seconds."""
    return tuple(resident.name for resident in _oldest_first(residents) if now_s - resident.used_at_s >= idle_s)


def next_idle_s(residents: Iterable[Resident], now_s: float, idle_s: float) -> float | None:
    """Seconds until the next model has been idle for `idle_s`; None while none may go."""
    return next((max(0.0, found.used_at_s + idle_s - now_s) for found in _oldest_first(residents)), None)


def _oldest_first(residents: Iterable[Resident]) -> Iterator[Resident]:
    yield from sorted((found for found in residents if found.may_go), key=lambda found: found.used_at_s)
