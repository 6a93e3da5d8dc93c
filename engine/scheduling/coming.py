"""Prefixes that nobody has computed yet and somebody is about to."""

from collections.abc import Mapping, Sequence

from engine.cache.prefix import PageKey
from engine.scheduling.pool_queues import PoolQueues
from engine.scheduling.sequence import Rank
from engine.scheduling.state_borders import StateBorders


def pending_keys(pools: Sequence[PoolQueues], states: StateBorders) -> dict[PageKey, Rank]:
    """Pages that running prefills have yet to compute, and the rank of the sequence that computes them."""
    prefills = [sequence for pool in pools for sequence in pool.prefill_queue.values()]
    return {key: sequence.rank for sequence in prefills for key in states.coming(sequence)}


def is_coming(
    keys: list[PageKey],
    rank: Rank,
    pools: Sequence[PoolQueues],
    pending: Mapping[PageKey, Rank],
    states: StateBorders,
) -> bool:
    """A prefill that goes first will soon have computed the next page of `keys`: waiting saves those rows."""
    known = max(len(states.known(pool, keys)) for pool in pools)
    return any(pending.get(key, rank) < rank for key in states.awaited(keys, known))
