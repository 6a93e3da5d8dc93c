"""Which models are unloaded: for the memory of another one, and because nobody asks for them. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that holds memory, in bytes; when it was last used, in seconds of a monotonic clock.

    may_go: it is loaded and no request uses it. is_going: it is being unloaded, its memory is about to be free.
    keep_s: how long it stays without a request, below 0 for ever; None = as long as the server says.
    """

    name: str
    size: int
    used_at_s: float
    may_go: bool
    is_going: bool = False
    keep_s: float | None = None


def fits(residents: Iterable[Resident], needed: int, budget: int) -> bool:
    """Whether `needed` bytes are free now. budget: 0 = no bound."""
    return not budget or needed + sum(resident.size for resident in residents) <= budget


def to_unload(residents: Sequence[Resident], needed: int, budget: int) -> tuple[str, ...] | None:
    """The models to unload so that `needed` bytes fit, those used least recently first.

    Empty when what is free or about to be is enough; None when requests use too much: then nothing is unloaded in vain.
    """
    staying = sum(resident.size for resident in residents if not resident.is_going)
    names, missing = _freeing(needed + staying - budget if budget else 0, _oldest_first(residents))
    return names if missing <= 0 else None


def to_yield(ready: Iterable[Resident], others: int, needed: int, budget: int) -> frozenset[str]:
    """The ready models that would have to go if no request used them, for a model that has waited long enough.

    They take no new requests until it has its memory. others: bytes that other models keep.
    """
    found = sorted(ready, key=lambda resident: resident.used_at_s)
    names, _ = _freeing(needed + others + sum(resident.size for resident in found) - budget, found)
    return frozenset(names)


def _freeing(over: int, residents: Iterable[Resident]) -> tuple[tuple[str, ...], int]:
    """The first ones that together hold as much as is too much, and what is missing when all do not."""
    chosen: list[str] = []
    for resident in residents:
        if over <= 0:
            break
        chosen.append(resident.name)
        over -= resident.size
    return tuple(chosen), over


def idle(residents: Iterable[Resident], now_s: float, idle_s: float) -> tuple[str, ...]:
    """The models that nobody has used for as long as they stay. idle_s: of those that do not say, 0 = for ever."""
    left = ((resident.name, left_s(resident, now_s, idle_s)) for resident in _oldest_first(residents))
    return tuple(name for name, due_s in left if due_s is not None and due_s <= 0)


def next_idle_s(residents: Iterable[Resident], now_s: float, idle_s: float) -> float | None:
    """Seconds until the next model has been idle for long enough; None while none may go."""
    due = [left_s(resident, now_s, idle_s) for resident in _oldest_first(residents)]
    return min((max(0.0, due_s) for due_s in due if due_s is not None), default=None)


def left_s(resident: Resident, now_s: float, idle_s: float) -> float | None:
    """Seconds until a model has been idle for long enough if nobody uses it; None = it stays."""
    keep_s = (idle_s or None) if resident.keep_s is None else resident.keep_s
    if keep_s is None or keep_s < 0:
        return None
    return keep_s + (resident.used_at_s - now_s if resident.may_go else 0.0)


def _oldest_first(residents: Iterable[Resident]) -> Iterator[Resident]:
    yield from sorted((found for found in residents if found.may_go), key=lambda found: found.used_at_s)
