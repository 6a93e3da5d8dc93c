"""Prefixes that nobody has computed yet and somebody is about to.
Where sequences with recurrent layers may begin: at borders of blocks for which a snapshot of their state is kept.
Keys and values of a prefix are there for every token; the state is there only where it is, so a prefix is shared up to
its last snapshot. One is taken every `STATE_TOKENS` tokens and at the last border of a prompt. Of an answer the last
`PASSING` borders have one: the next turn of a conversation goes on from there, and so does a sequence that had to give
its slots back."""

from collections.abc import Iterable, Mapping

from engine.core.kv_blocks import BlockKey, RecentKeys
from engine.core.kv_queues import PoolQueues
from engine.core.plan import Segment
from engine.core.sequence import Rank, Sequence

PASSING = 2  # whoever takes the slots of a sequence takes its last block first, and with it the last border
STATE_TOKENS = 256  # a state of a small model takes as much memory as keys and values of some 800 tokens


class StateBorders:
    """Owns which snapshots there are, and what has gone since it was last asked. Does nothing for other models."""

    def __init__(self, is_recurrent: bool, limit: int, block_size: int) -> None:
        self.is_recurrent = is_recurrent
        self._size = block_size
        self._snapshots = RecentKeys(limit)
        self._passing: dict[str, list[BlockKey]] = {}  # by sequence: the snapshots of its answer, oldest first
        self._origins: dict[str, BlockKey] = {}  # by sequence: the snapshot that its first rows will go on from
        self._ended: list[str] = []
        self._dropped: list[BlockKey] = []

    def known(self, pool: PoolQueues, keys: list[BlockKey]) -> list[int | None]:
        """The prefix that a newcomer can go on from, as the pool tells it."""
        known = pool.known(keys)
        ends = (index + 1 for index, key in enumerate(keys[: len(known)]) if key in self._snapshots)
        return known[: max(ends, default=0)] if self.is_recurrent else known

    def in_progress(self, sequence: Sequence) -> list[BlockKey]:
        """Keys of the prefixes that others can share once a prompt under way is computed so far."""
        keys, tokens = sequence.keys, len(sequence.tokens)
        if not self.is_recurrent:
            return keys[sequence.registered :]
        ends = self._borders(sequence.computed, tokens, tokens) if self._snapshots.limit else []
        return [keys[end // self._size - 1] for end in ends if end // self._size <= len(keys)]

    def start(self, sequence: Sequence) -> None:
        if sequence.id in self._ended:  # what it had will not be read, but replaced
            self._ended.remove(sequence.id)
        if self.is_recurrent and sequence.computed:
            key = sequence.keys[sequence.computed // self._size - 1]
            self._origins[sequence.id] = key
            self._snapshots.touch(key)

    def origin(self, sequence: Sequence) -> BlockKey:
        """The snapshot that the next rows go on from, b"" = where the sequence's last rows ended."""
        return self._origins.get(sequence.id, b"")

    def wanted(self, sequence: Sequence, end: int) -> tuple[tuple[int, BlockKey], ...]:
        """After how many of the next rows, up to token `end`, a snapshot is taken; and its key."""
        if not self.is_recurrent or not self._snapshots.limit:
            return ()
        start = sequence.computed
        borders = self._borders(start, end, len(sequence.tokens))
        if borders:
            sequence.extend_keys(borders[-1], self._size)
        return tuple((border - start, sequence.keys[border // self._size - 1]) for border in borders)

    def commit(self, segment: Segment, kept_rows: int) -> None:
        """So many rows of a segment count, and so do the snapshots among them."""
        if not self.is_recurrent or not kept_rows:
            return
        sequence = segment.sequence
        self._origins.pop(sequence.id, None)
        for rows, key in segment.snapshots:
            if rows > kept_rows:
                break
            self._dropped += self._snapshots.put(key, self._needed)
            if len(segment.tokens) == 1 and (segment.first_position + rows) % STATE_TOKENS:
                # An answer has got to another border: the oldest of its last ones is given up.
                passing = self._passing.setdefault(sequence.id, [])
                passing.append(key)
                old = passing.pop(0) if len(passing) > PASSING else b""
                if old and old not in self._needed and self._snapshots.discard(old):
                    self._dropped.append(old)

    def end(self, sequence: Sequence) -> None:
        """A sequence has ended, or given its slots back: its state is not wanted, its snapshots may be."""
        if self.is_recurrent:
            self._origins.pop(sequence.id, None)
            self._passing.pop(sequence.id, None)
            self._ended.append(sequence.id)

    def take_forgotten(self) -> tuple[tuple[str, ...], tuple[BlockKey, ...]]:
        """What the runtime may give back since the last call: states of sequences by id, snapshots by key."""
        forgotten = tuple(self._ended), tuple(key for key in self._dropped if key not in self._snapshots)
        self._ended.clear()
        self._dropped.clear()
        return forgotten

    @property
    def _needed(self) -> frozenset[BlockKey]:
        return frozenset(self._origins.values())

    def _borders(self, start: int, end: int, tokens: int) -> list[int]:
        """Tokens after which a snapshot is taken, of rows `start` to `end` of a sequence of so many tokens.
        An equal prompt may begin before its last token only, so a prompt that ends at a border has two."""
        last = {(tokens - 1) // self._size * self._size, tokens // self._size * self._size}
        found = {border for border in last if start < border <= end}
        return sorted(found.union(range(start // STATE_TOKENS * STATE_TOKENS + STATE_TOKENS, end + 1, STATE_TOKENS)))


def pending_keys(prefills: Iterable[Sequence], states: StateBorders) -> dict[BlockKey, Rank]:
    """Blocks that running prefills have yet to compute, and the rank of the sequence that computes them."""
    return {key: sequence.rank for sequence in prefills for key in states.in_progress(sequence)}


def is_in_progress(
    keys: list[BlockKey], known: int, rank: Rank, pending: Mapping[BlockKey, Rank], states: StateBorders
) -> bool:
    """A prefill that goes first will soon have computed the next block of `keys`: waiting saves those rows."""
    awaited = keys[known:] if states.is_recurrent else keys[known : known + 1]
    return any(pending.get(key, rank) < rank for key in awaited)
