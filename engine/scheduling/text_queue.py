"""Which texts of an encoder share the next pass. Pure: rows are numbers, and nothing knows the time.

Requests take turns in a ring (deficit round robin): whose turn it is spends its credit of rows, then stands behind all
others with a new turn's credit. Who comes stands at the end, so nobody is overtaken. A pass is filled in that order
until a text does not fit; rows that are left then are free for whatever fits. So one request of R rows that meets m
others is done, whatever waits behind them, after 2 (R + m (k C + T)) / M + 1 passes: M = rows of the largest pass,
C = credit of a turn, k = turns it needs (R / C, rounded up), T = rows of the longest text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

TURNS_PER_PASS = 4  # a turn's credit is that part of the largest pass
LOOK_AHEAD = 32  # texts of one request that are tried for the rows that are left


@dataclass(slots=True)
class TextGroup:
    """The waiting texts of one request: rows by id, in the order they came. credit: rows left of its turn."""

    credit: int
    texts: dict[str, int] = field(default_factory=dict)


Ring = dict[str, TextGroup]  # the first has its turn


def take_turns(ring: Ring, rows: int, credit: int) -> Iterator[str]:
    """Texts in the order of turns that fit `rows`; ends at the first that does not.

    Turns and credits are spent as texts are taken; who takes one removes it from the ring before the next.
    """
    while ring:
        request, group = next(iter(ring.items()))
        name, size = next(iter(group.texts.items()))
        if size > group.credit:
            del ring[request]
            ring[request] = group
            group.credit += credit
            continue
        if size > rows:
            return
        group.credit -= size
        rows -= size
        yield name


def left_over(ring: Ring, rows: int) -> Iterator[str]:
    """Texts that fit rows which would be padding, by nobody's turn."""
    for group in ring.values():
        for name, size in islice(group.texts.items(), LOOK_AHEAD):
            if size <= rows:
                rows -= size
                yield name


def smallest(variants: Sequence[int], rows: int) -> int:
    """The fewest rows of a variant that hold so many. ValueError when there is none."""
    return min(variant for variant in variants if variant >= rows)


class TextQueue:
    """Waiting texts by request and priority (lower first); the only owner of turns and credits.

    alone: a pass has one text, whose numbers then depend on no other.
    """

    def __init__(self, variants: Sequence[int], alone: bool = False) -> None:
        self._variants = tuple(variants)
        self._alone = alone
        self._most = max(variants)
        self._credit = max(1, self._most // TURNS_PER_PASS)
        self._rings: dict[int, Ring] = {}
        self._home: dict[str, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._home)

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def add(self, name: str, request: str, rows: int, priority: int = 0) -> None:
        """Queue one text of a request. ValueError when no variant has so many rows."""
        if not 0 < rows <= self._most:
            raise ValueError(f"a text has {rows} tokens, this model reads at least 1 and at most {self._most}")
        ring = self._rings.setdefault(priority, {})
        group = ring.setdefault(request, TextGroup(self._credit))
        group.texts[name] = rows
        self._home[name] = (priority, request)

    def remove(self, name: str) -> None:
        """Forget a text; unknown ones are ignored."""
        if name in self._home:
            self._pop(name)

    def take(self) -> tuple[int, tuple[str, ...]]:
        """The rows of the next pass and its texts, which wait no longer; (0, ()) when none waits."""
        chosen: list[str] = []
        used = 0
        for priority in sorted(self._rings):
            for name in take_turns(self._rings[priority], self._most - used, self._credit):
                used += self._pop(name)
                chosen.append(name)
                if self._alone:
                    return smallest(self._variants, used), (name,)
        for priority in sorted(self._rings):
            for name in tuple(left_over(self._rings[priority], self._most - used)):
                used += self._pop(name)
                chosen.append(name)
        return (smallest(self._variants, used), tuple(chosen)) if chosen else (0, ())

    def _pop(self, name: str) -> int:
        """Remove a text; its rows."""
        priority, request = self._home.pop(name)
        ring = self._rings[priority]
        rows = ring[request].texts.pop(name)
        if not ring[request].texts:
            del ring[request]
        if not ring:
            del self._rings[priority]
        return rows
