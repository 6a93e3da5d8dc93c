"""Prefixes that nobody has computed yet and somebody is about to."""

from collections.abc import Mapping, Sequence

from engine.cache.prefix import PageKey
from engine.scheduling.pool_queues import PoolQueues

Rank = tuple[int, int]


def pending_keys(pools: Sequence[PoolQueues]) -> dict[PageKey, Rank]:
    """Pages that running prefills have yet to compute, and the rank of the sequence that computes them."""
    prefills = [sequence for pool in pools for sequence in pool.prefill_queue.values()]
    return {key: sequence.rank for sequence in prefills for key in sequence.keys[sequence.registered :]}


def is_coming(keys: list[PageKey], rank: Rank, pools: Sequence[PoolQueues], pending: Mapping[PageKey, Rank]) -> bool:
    """A prefill that goes first will soon have computed the next page of `keys`: waiting saves those rows."""
    known = max(len(pool.known(keys)) for pool in pools)
    return known < len(keys) and keys[known] in pending and pending[keys[known]] < rank
