"""How much memory the caches and states of a runtime hold, which only tests ask."""

from typing import Any

from engine.runtime.kv import SequenceCaches
from engine.runtime.kv_memory import Bound, GroupColumns, SequenceCache
from engine.runtime.recurrent import RecurrentStates


def owners(caches: SequenceCaches[Bound]) -> list[SequenceCache[Bound]]:
    """Every cache that owns a block."""
    return list({id(cache): cache for cache, _ in caches._owners.values()}.values())


def cache_bytes(*caches: SequenceCache[Any]) -> int:
    """Held by these caches, the bases they stand on not counted."""
    parts = [part for cache in caches for part in (*cache.full, *cache.behind)]
    return _bytes(parts)


def held_bytes(caches: SequenceCaches[Any]) -> int:
    """In use: caches, the bases they stand on, and offloaded copies."""
    used = [*owners(caches), *caches._taken, *caches._offloaded.values()]
    used += [cache.base for cache in used if cache.base]
    pieces = [part for parts in caches._pieces.values() for part in parts]
    return _bytes(pieces) + cache_bytes(*{id(cache): cache for cache in used}.values())


def state_bytes(states: RecurrentStates) -> int:
    """Of all states; what two hold counts once."""
    found = (*states._current.values(), *states._spare.values(), *states._snapshots.values(), states._empty)
    return sum({id(state): state.tails.nbytes + state.memories.nbytes for state in found}.values())


def _bytes(parts: list[GroupColumns]) -> int:
    return sum(part.keys.nbytes + part.values.nbytes for part in parts)
