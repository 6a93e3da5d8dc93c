"""What must hold between steps, checked over read-only copies; run by tests and when the worker is idle."""

from collections import Counter
from collections.abc import Iterator

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import SequenceStatus


def violations(scheduler: Scheduler) -> Iterator[str]:
    """One sentence for each broken rule; none when all is well."""
    yield from _pool_violations(scheduler)
    yield from _sequence_violations(scheduler)


def _pool_violations(scheduler: Scheduler) -> Iterator[str]:
    pools = [pool.snapshot() for pool in scheduler.pools]
    for index, (pool, pages) in enumerate(zip(pools, scheduler.pools, strict=True)):
        held = Counter(
            page
            for sequence in scheduler.sequences()
            if sequence.status is not SequenceStatus.WAITING and sequence.pool == index
            for page in sequence.pages
        )
        for page in range(pages.reserved, pages.page_count):
            references = pool.references[page]
            if references != held[page]:
                yield f"pool {index} page {page}: {references} references, {held[page]} holders"
            states = (references > 0) + (page in pool.free) + (page in pool.cached)
            if states != 1:
                yield f"pool {index} page {page} is in {states} states"
            if page in pool.cached and page not in pool.keys:
                yield f"pool {index} page {page} is cached without a key"
        if len(set(pool.keys.values())) != len(pool.keys):
            yield f"pool {index}: two pages share a key"
    for index, (reserved, available) in enumerate(scheduler.reservations()):
        if reserved > available:
            yield f"pool {index}: {reserved} pages reserved, {available} available"


def _sequence_violations(scheduler: Scheduler) -> Iterator[str]:
    for sequence in scheduler.sequences():
        page_columns = scheduler.pools[0].page_columns
        if sequence.rows_wanted < 1:
            yield f"{sequence.id}: nothing left to compute"
        if len(sequence.pages) * page_columns < sequence.computed:
            yield f"{sequence.id}: {sequence.computed} computed tokens in {len(sequence.pages)} pages"
        if sequence.status is SequenceStatus.WAITING and (sequence.pages or sequence.computed):
            yield f"{sequence.id}: waiting, but holds columns"
        if sequence.computed % sequence.block_length:
            yield f"{sequence.id}: {sequence.computed} computed tokens are no whole blocks of {sequence.block_length}"
        if sequence.status is SequenceStatus.DECODE and sequence.rows_wanted > sequence.decode_rows:
            yield f"{sequence.id}: decodes, but wants {sequence.rows_wanted} rows"
        if sequence.status is SequenceStatus.PREFILL and sequence.rows_wanted <= sequence.decode_rows:
            yield f"{sequence.id}: in the prefill queue with {sequence.rows_wanted} rows to compute"
        if len(sequence.tokens) > scheduler.rules.capacity.tokens_per_sequence:
            yield f"{sequence.id}: {len(sequence.tokens)} tokens exceed the context"
