"""The pool and the sequences whose keys it holds, and how texts that become vectors take turns with the others.
Tokens come first: beside those who wait for them texts have at most so many rows as a setting allows, and what would be
padding. Once they have waited for some steps they get that many before any prompt does, so that they always go on."""

from collections import abc
from collections.abc import Iterator
from itertools import chain

from engine.bundle.variant import ShapeTable
from engine.core.kv_blocks import GONE, BlockKey, BlockPool, RecentKeys, Sight
from engine.core.plan import FORESEEN_TOKENS, BlockMove, MoveKind
from engine.core.policy import Extent
from engine.core.sequence import Sequence, SequenceStatus, blocks_for
from engine.core.window_blocks import WindowBlocks

Rows = list[tuple[Sequence, int]]  # sequences, and how many rows each takes or may take


class PoolQueues:
    """The pool: its blocks, queues and width.
    moves: are appended here and carried out before the next step. window, window_blocks: as `Rules` has them."""

    def __init__(
        self,
        blocks: BlockPool,
        shapes: ShapeTable,
        host_cache: RecentKeys,
        moves: list[BlockMove],
        window: int = 0,
        window_blocks: int = 0,
    ) -> None:
        self.blocks = blocks
        size, rows = blocks.block_size, shapes.max_rows
        self.windows = WindowBlocks(window if window_blocks else 0, size, window_blocks, rows)
        self.sight = Sight(0 if window_blocks else window, size, rows)
        self._shapes = shapes
        self.prefill_queue: dict[str, Sequence] = {}
        self.decode_queue: dict[str, Sequence] = {}
        self.width = 0  # past slots of its last step
        self.regret_ms = 0.0  # by staying at that width
        self.prefill_starved = False
        self.pooled_waits = 0  # steps since a text that becomes a vector had a row, while one wants some
        self._host_cache = host_cache
        self._moves = moves

    @property
    def population(self) -> int:
        return len(self.prefill_queue) + len(self.decode_queue)

    def running(self) -> Iterator[Sequence]:
        yield from self.prefill_queue.values()
        yield from self.decode_queue.values()

    def available(self, newcomers: int = 0) -> int:
        """Blocks that may be taken now, `newcomers` sequences let in besides those that are here.
        A variant with many rows may span fewer slots than the pool has; what it spans, the sequences share. While one
        of them uses a block beyond, every step must be of a variant with fewer rows: until that sequence has ended a
        newcomer gets no block at all."""
        limit, blocks = self.block_limit(newcomers), self.blocks
        if newcomers and limit < blocks.block_count and blocks.high_water(False) > limit * blocks.block_size:
            return 0
        return blocks.available_below(limit)

    def block_limit(self, newcomers: int = 0) -> int:
        """Blocks that lie in the slots spanned by a variant with a row for every sequence, newcomers included."""
        if self._shapes.slots:  # a block is a cache, and no step spans more than those of its own sequences
            return self.blocks.block_count
        return min(self.blocks.block_count, self._shapes.reach(self.population + newcomers) // self.blocks.block_size)

    def allocate(self, count: int, newcomers: int = 0) -> tuple[int, ...] | None:
        """Fresh blocks, or None. With a host cache the lowest: what they hold is copied away, to keep pools low."""
        if count > self.available(newcomers):
            return None
        if not self._host_cache.limit:
            return self.blocks.allocate(count, self.block_limit(newcomers))
        claimed = self.blocks.claim_lowest(count)
        assert claimed is not None
        for block, key in claimed[1].items():
            self._offload(block, key)
        return claimed[0]

    @property
    def reserved(self) -> int:
        """Blocks that prompts under way will still take: step by step and always the lowest, as a step spans all up
        to the highest that is written."""
        return sum(self._reserved_for(sequence) for sequence in self.prefill_queue.values())

    def _reserved_for(self, sequence: Sequence) -> int:
        return self.to_come(sequence, sequence.freed, sequence.blocks[sequence.freed :])

    def to_come(self, sequence: Sequence, gone: int, held: abc.Sequence[int]) -> int:
        """Blocks that its known tokens take beside `held`; `gone` lie before these.
        Where blocks are given back, one that others hold too does not count as held: it will not be free by that."""
        own = self.blocks.unshared(held) if self.sight.window else len(held)
        return self.sight.held(len(sequence.tokens) - gone * self.blocks.block_size) - own

    def grow(self, sequence: Sequence, blocks: int) -> bool:
        missing = blocks - len(sequence.blocks)
        if missing <= 0:
            return True
        is_prefill = sequence.status is SequenceStatus.PREFILL
        own = self._reserved_for(sequence) if is_prefill else 0
        if missing + self.reserved - own > self.available():
            return False
        if not self._has_window_room(missing, sequence if is_prefill else None):
            return False
        fresh = self.allocate(missing)
        sequence.blocks.extend(fresh or ())
        self.windows.hold(fresh or ())
        return fresh is not None

    def admits(self, newcomer: Sequence) -> bool:
        """Whether there is room for what it will see in layers with a window, its next tokens included."""
        coming = min(newcomer.request.params.max_tokens, FORESEEN_TOKENS)
        return self._has_window_room(self.windows.wanted(len(newcomer.tokens) + coming), None)

    def _has_window_room(self, blocks: int, taker: Sequence | None) -> bool:
        """Beside what prompts under way will still hold; the taker's own is among it."""
        coming = sum(
            max(0, self.windows.wanted(len(sequence.tokens)) - len(sequence.blocks) + sequence.behind)
            for sequence in self.prefill_queue.values()
            if sequence is not taker
        )
        return self.windows.has_room(blocks + coming)

    def known(self, keys: abc.Sequence[BlockKey]) -> list[int | None]:
        """The longest computed prefix that a newcomer may share: the block of each key, None for a copy on the host,
        GONE for what it will not see.
        Not more copies than half the host cache: making room for them may put as many others there."""
        limit = self.block_limit(newcomers=1)
        copies, sees = self._host_cache.limit // 2, self.sight.window
        if sees and copies < self.sight.most:
            copies = 0
        found: list[int | None] = []
        for key in keys:
            block = next(iter(self.blocks.lookup((key,))), limit)
            is_copy = block >= limit and copies > 0 and key in self._host_cache
            if block >= limit and not is_copy and not sees:
                break
            copies -= is_copy and not sees
            found.append(None if is_copy else block if block < limit else GONE)
        return self._usable(found)

    def _usable(self, found: list[int | None]) -> list[int | None]:
        """Of places of a prefix those that a newcomer can go on from."""
        if not self.sight.window:
            return found[: self.windows.usable(found)]
        count = self.sight.usable([place != GONE for place in found])
        gone = self.sight.first_seen(count * self.blocks.block_size)
        return [GONE] * gone + found[gone:count]

    def shareable(self, sequence: Sequence, known: list[int | None]) -> list[int | None]:
        """Of a known prefix what a sequence can go on from: up to where it may be cut, a window before that."""
        while (count := sequence.shareable_blocks(len(known), self.blocks.block_size)) < len(known):
            known = self._usable(known[:count])
        return known

    def load(self, keys: abc.Sequence[BlockKey], known: abc.Sequence[int | None]) -> list[int]:
        """Order copies from the host cache into fresh blocks; the blocks of the whole known prefix.
        known: what `known` returned for these keys. The caller has acquired its blocks and checked that enough fresh
        ones are there."""
        offloaded = [key for key, block in zip(keys, known, strict=False) if block is None]
        for key in offloaded:
            self._host_cache.touch(key)
        fresh = dict(zip(offloaded, self.allocate(len(offloaded), newcomers=1) or (), strict=True))
        for key, block in fresh.items():
            assert key in self._host_cache, "making room for copies has cost one of them"
            self.blocks.register(block, key)
            self._moves.append(BlockMove(MoveKind.LOAD, key, block))
        return [fresh[key] if block is None else block for key, block in zip(keys, known, strict=False)]

    def set_past(self, past: int, regret_ms: float = 0.0) -> None:
        """The next step spans `past` slots: cached blocks beyond go to the host cache, or are forgotten without one.
        regret_ms: what it loses for not having another width; 0 once it has the best one."""
        if self._shapes.segmented:
            return
        if self._host_cache.limit:
            for block in self.blocks.cached_above(past):
                key = self.blocks.key(block)
                assert key is not None
                self._offload(block, key)
        self.blocks.trim(past)
        self.regret_ms = self.regret_ms + regret_ms if past == self.width and regret_ms else 0.0
        self.width = past

    def extent(self) -> Extent:
        """The slots that the next step must span, and those it had better span.
        With a host cache, cached blocks ask for no width, and a pool is re-laid narrower only to half of it or less.
        Segmented shapes have no slots to span: what counts is how many their rows read."""
        if self._shapes.segmented:
            read = min(sum(sequence.computed for sequence in self.decode_queue.values()), self._shapes.max_past)
            first = min(self.prefill_queue.values(), key=lambda sequence: sequence.rank, default=None)
            return Extent(read, read, read, prompt_past=first.computed if first else 0)
        size = self.blocks.block_size  # of the blocks that hold something: reserved ones hold nothing yet
        written = (s.blocks[s.freed : blocks_for(s.computed, size)] for s in self.running())
        referenced = (max(chain.from_iterable(written), default=-1) + 1) * size
        if not self._host_cache.limit:
            preferred = max(referenced, self.blocks.high_water(with_cached=True))
        else:
            keeps = 2 * self._shapes.round_past(referenced) > self.width
            preferred = max(referenced, self.width) if keeps else referenced
        return Extent(referenced, preferred, self.width, self.regret_ms)

    def note_prefills(self, taken: Rows, kv_only: abc.Sequence[tuple[Sequence, int]]) -> None:
        """A step is planned: whether prompts must come first in the next one, because this has no room for any.
        kv_only: of a step that decodes, what prompts could compute in a KV-only shape, which never decodes: so it has
        its turn after every step that does."""
        waits = any(not sequence.is_pooled for sequence in self.prefill_queue.values())
        has_rows = any(not sequence.is_pooled for sequence, _ in taken)
        is_due = any(rows > 0 and not sequence.is_pooled for sequence, rows in kv_only)
        self.prefill_starved = waits and (not has_rows or is_due)

    def enqueue(self, sequence: Sequence) -> None:
        is_prefill = sequence.rows_wanted > sequence.decode_rows
        sequence.move(SequenceStatus.PREFILL if is_prefill else SequenceStatus.DECODE)
        (self.prefill_queue if is_prefill else self.decode_queue)[sequence.id] = sequence

    def advance(self, sequence: Sequence, prefix_cache: bool) -> None:
        """More of it is computed: full blocks go into the prefix cache, if there is one; others are behind windows."""
        if prefix_cache:
            self._register(sequence)
        first = min(self.sight.first_seen(sequence.computed), len(sequence.blocks))
        if first > sequence.freed:
            self.blocks.release(sequence.blocks[sequence.freed : first])
            sequence.blocks[sequence.freed : first] = [GONE] * (first - sequence.freed)
            sequence.freed = first
        first = min(self.windows.sight.first_seen(sequence.computed), len(sequence.blocks))
        if first > sequence.behind:
            self._release_windows(sequence.blocks[sequence.behind : first])
            sequence.behind = first

    def _release_windows(self, blocks: abc.Sequence[int]) -> None:
        self.windows.release(blocks, known={block for block in blocks if self.blocks.key(block) is not None})

    def _register(self, sequence: Sequence) -> None:
        size = self.blocks.block_size
        full = sequence.computed // size
        if full <= sequence.registered:
            return
        sequence.extend_keys(full * size, size)
        full = min(full, len(sequence.keys))  # those of a run that ends with a block come together
        for block in range(sequence.registered, full):
            key = sequence.keys[block]
            if any(other not in self.windows for other in self.blocks.lookup((key,))):
                self.blocks.disown(key)
            self.blocks.register(sequence.blocks[block], key)
        sequence.registered = full

    def hand_over(self, sequence: Sequence, blocks: list[int]) -> None:
        sequence.blocks, sequence.registered = blocks, len(blocks)
        sequence.computed = len(blocks) * self.blocks.block_size
        sequence.freed = blocks.count(GONE)
        sequence.behind = self.windows.sight.first_seen(sequence.computed)
        self.windows.hold(blocks[sequence.behind :])

    def leave(self, sequence: Sequence) -> None:
        self.prefill_queue.pop(sequence.id, None)
        self.decode_queue.pop(sequence.id, None)
        self._release_windows(sequence.blocks[sequence.behind :])
        self.blocks.release(sequence.blocks[sequence.freed :])
        sequence.blocks, sequence.freed, sequence.behind = [], 0, 0

    def take_freed(self) -> tuple[frozenset[int], frozenset[int]]:
        """Blocks that nobody wants since the last call, and those that only layers with a window gave back."""
        emptied = self.blocks.take_emptied()
        if not self.windows.window:
            return emptied, frozenset()
        self.windows.forget(emptied)
        return emptied, self.windows.take_dropped()

    def _offload(self, block: int, key: BlockKey) -> None:
        if key not in self._host_cache:
            self._moves.append(BlockMove(MoveKind.OFFLOAD, key, block))
        self._moves.extend(BlockMove(MoveKind.EVICT, old) for old in self._host_cache.put(key))


PATIENCE = 8  # steps without a row for any text, after which texts have a turn


class PooledTurns:
    """rows: that texts may take of a step while a sequence generates, at most a quarter of the most."""

    def __init__(self, rows: int, pool: PoolQueues, shapes: ShapeTable) -> None:
        self._rows = min(rows, max(shapes.unit, shapes.max_rows // 4))
        self._pool = pool
        self._most_rows = shapes.max_rows // shapes.unit

    @property
    def is_contended(self) -> bool:
        """Whether there are both: texts that become vectors, and sequences that generate."""
        return len({sequence.is_pooled for sequence in self._pool.running()}) == 2

    @property
    def is_due(self) -> bool:
        return self._pool.pooled_waits >= PATIENCE

    def newcomers(self, sequence: Sequence) -> int:
        """For how many sequences more there must be rows when this one comes: a text leaves room for all others."""
        if not (sequence.is_pooled and any(not each.is_pooled for each in self._pool.running())):
            return 1
        return max(1, self._most_rows - self._pool.population)

    def in_the_way(self) -> list[Sequence]:
        """Texts in slots that a step of most rows does not span: while they are there, prompts have fewer rows."""
        if not self.is_contended:
            return []
        limit = self._pool.block_limit(max(0, self._most_rows - self._pool.population))
        return [each for each in self._pool.running() if each.is_pooled and max(each.blocks, default=-1) >= limit]

    def bounded(self, prefills: Rows) -> Rows:
        """Of the rows that prompts may take those that are allowed now, in the order in which they are to take them."""
        if not self.is_contended:
            return prefills
        left, texts, prompts = self._rows, [], []
        for sequence, rows in prefills:
            if not sequence.is_pooled:
                prompts.append((sequence, rows))
            elif left > 0:
                texts.append((sequence, min(rows, left)))
                left -= rows
        return texts + prompts if self.is_due else prompts + texts

    def filled(self, taken: Rows, prefills: Rows, padding: int) -> Rows:
        rows = {sequence.id: (sequence, count) for sequence, count in taken}
        for sequence, most in prefills:
            if sequence.is_pooled and padding > 0:
                own = rows.get(sequence.id, (sequence, 0))[1]
                rows[sequence.id] = sequence, min(most, own + padding)
                padding -= rows[sequence.id][1] - own
        return list(rows.values())

    def count(self, prefills: Rows) -> None:
        """A step is planned: whether texts have to wait, and for how long now."""
        pool = self._pool
        waits = self.is_contended and any(sequence.is_pooled for sequence in pool.prefill_queue.values())
        has_rows = any(sequence.is_pooled for sequence, _ in prefills)
        pool.pooled_waits = pool.pooled_waits + 1 if waits and not has_rows else 0
