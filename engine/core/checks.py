"""What must hold between steps, one sentence for each broken rule; run by tests and while the worker is idle."""

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Several

from engine.core.kv_blocks import GONE, BlockPool, Sight
from engine.core.sequence import Capacity, Sequence, SequenceStatus
from engine.core.window_blocks import WindowBlocks


def pool_violations(blocks: BlockPool, sequences: Several[Sequence], reserved: int, available: int) -> Iterator[str]:
    """reserved: blocks that prompts under way will still take; available: those that are there."""
    pool = blocks.snapshot()
    held = Counter(
        block
        for sequence in sequences
        if sequence.status is not SequenceStatus.WAITING
        for block in sequence.blocks[sequence.freed :]
    )
    for block in range(blocks.reserved, blocks.block_count):
        references = pool.references[block]
        if references != held[block]:
            yield f"block {block}: {references} references, {held[block]} holders"
        states = (references > 0) + (block in pool.free) + (block in pool.cached)
        if states != 1:
            yield f"block {block} is in {states} states"
        if block in pool.cached and block not in pool.keys:
            yield f"block {block} is cached without a key"
    if len(set(pool.keys.values())) != len(pool.keys):
        yield "two blocks share a key"
    if reserved > available:
        yield f"{reserved} blocks reserved, {available} available"


def sequence_violations(sequences: Several[Sequence], block_size: int, capacity: Capacity) -> Iterator[str]:
    for sequence in sequences:
        name, computed, rows = sequence.id, sequence.computed, sequence.rows_wanted
        if rows < 1:
            yield f"{name}: nothing left to compute"
        if len(sequence.blocks) * block_size < computed:
            yield f"{name}: {computed} computed tokens in {len(sequence.blocks)} blocks"
        if sequence.status is SequenceStatus.WAITING and (sequence.blocks or computed):
            yield f"{name}: waiting, but holds slots"
        if computed % sequence.block_length:
            yield f"{name}: {computed} computed tokens are no whole blocks of {sequence.block_length}"
        if sequence.status is SequenceStatus.DECODE and rows > sequence.decode_rows:
            yield f"{name}: decodes, but wants {rows} rows"
        if sequence.status is SequenceStatus.PREFILL and rows <= sequence.decode_rows:
            yield f"{name}: in the prefill queue with {rows} rows to compute"
        if len(sequence.tokens) > capacity.tokens_per_sequence:
            yield f"{name}: {len(sequence.tokens)} tokens exceed the context"


def window_violations(windows: WindowBlocks, sequences: Several[Sequence]) -> Iterator[str]:
    if not windows.window:
        return
    held = sum(len(sequence.blocks) - sequence.behind for sequence in sequences)
    if windows.held != held:
        yield f"{windows.held} blocks count as held under windows, sequences see {held}"
    if not windows.has_room(0):
        yield f"{windows.held} blocks are held under windows, more than there are"
    for sequence in sequences:
        first, end = windows.sight.first_seen(sequence.computed), -(-sequence.computed // windows.block_size)
        if any(block not in windows for block in sequence.blocks[first:end]):
            yield f"{sequence.id}: a block that it sees under a window is gone"


def sight_violations(sight: Sight, sequences: Several[Sequence]) -> Iterator[str]:
    """Of the blocks that running sequences have given back: all that they do not see, and no others."""
    for sequence in sequences:
        if sequence.freed != sight.first_seen(sequence.computed):
            yield f"{sequence.id}: has given back {sequence.freed} blocks, not those that it does not see"
        if GONE in sequence.blocks[sequence.freed :]:
            yield f"{sequence.id}: a block that it sees is gone"
