"""One pool and the sequences whose keys it holds: queues, pages, width, copies to and from the host cache."""

from collections import abc
from collections.abc import Iterator

from engine.bundle.variant import ShapeTable
from engine.cache.host_cache import HostCache
from engine.cache.pages import PagePool
from engine.cache.prefix import PageKey
from engine.scheduling.admission import pages_for
from engine.scheduling.plan import MoveKind, PageMove
from engine.scheduling.policy import Extent
from engine.scheduling.rewind import rewind
from engine.scheduling.sequence import Sequence, SequenceStatus


class PoolQueues:
    """One pool: its pages, queues and width. A pass serves one pool.

    host_cache, moves: shared by all pools; moves are appended here and carried out before the next pass.
    """

    def __init__(
        self, index: int, pages: PagePool, shapes: ShapeTable, host_cache: HostCache, moves: list[PageMove]
    ) -> None:
        self.index = index
        self.pages = pages
        self._shapes = shapes
        self.prefill_queue: dict[str, Sequence] = {}
        self.decode_queue: dict[str, Sequence] = {}
        self.last_pass = -1
        self.width = 0  # past columns of its last pass
        self.forgone_ms = 0.0  # by staying at that width
        self.prefill_starved = False
        self.pooled_waits = 0  # passes since a text that becomes a vector had a row, while one wants some
        self._host_cache = host_cache
        self._moves = moves

    @property
    def population(self) -> int:
        """How many sequences hold pages of this pool."""
        return len(self.prefill_queue) + len(self.decode_queue)

    def running(self) -> Iterator[Sequence]:
        """The sequences that hold pages of this pool."""
        yield from self.prefill_queue.values()
        yield from self.decode_queue.values()

    def available(self, newcomers: int = 0) -> int:
        """Pages that may be taken now, `newcomers` sequences let in besides those that are here.

        A variant with many rows may span fewer columns than the pool has; what it spans, the sequences of a pool
        share. While one of them uses a page beyond, every pass must be of a variant with fewer rows: until that
        sequence has ended a newcomer gets no page at all.
        """
        limit = self.page_limit(newcomers)
        if (
            newcomers
            and limit < self.pages.page_count
            and self.pages.high_water(False) > limit * self.pages.page_columns
        ):
            return 0
        return self.pages.available_below(limit)

    def page_limit(self, newcomers: int = 0) -> int:
        """Pages that lie in the columns spanned by a variant with a row for every sequence, newcomers included."""
        if self._shapes.slots:  # a page is a cache, and no pass spans more than those of its own sequences
            return self.pages.page_count
        return min(self.pages.page_count, self._shapes.reach(self.population + newcomers) // self.pages.page_columns)

    def allocate(self, count: int, newcomers: int = 0) -> tuple[int, ...] | None:
        """Fresh pages, or None. With a host cache the lowest: what they hold is copied away, so that pools stay low."""
        if count > self.available(newcomers):
            return None
        if not self._host_cache.limit:
            return self.pages.allocate(count, self.page_limit(newcomers))
        claimed = self.pages.claim_lowest(count)
        assert claimed is not None
        for page, key in claimed[1].items():
            self._offload(page, key)
        return claimed[0]

    @property
    def reserved(self) -> int:
        """Pages that the prompts being computed will still take.

        They take them pass by pass and always the lowest, because a pass spans every column up to the highest page
        that is written.
        """
        return sum(self._reserved_for(sequence) for sequence in self.prefill_queue.values())

    def _reserved_for(self, sequence: Sequence) -> int:
        return pages_for(len(sequence.tokens), self.pages.page_columns) - len(sequence.pages)

    def grow(self, sequence: Sequence, pages: int) -> bool:
        """Give a sequence `pages` pages in all; False when those not reserved for others are too few."""
        missing = pages - len(sequence.pages)
        if missing <= 0:
            return True
        own = self._reserved_for(sequence) if sequence.status is SequenceStatus.PREFILL else 0
        fresh = self.allocate(missing) if missing + self.reserved - own <= self.available() else None
        sequence.pages.extend(fresh or ())
        return fresh is not None

    def known(self, keys: abc.Sequence[PageKey]) -> list[int | None]:
        """The longest computed prefix that a newcomer may share: the page of each key, None for a copy on the host.

        Not more copies than half the host cache: making room for them may put as many others there.
        """
        limit = self.page_limit(newcomers=1)
        copies = self._host_cache.limit // 2
        found: list[int | None] = []
        for key in keys:
            page = next(iter(self.pages.lookup((key,))), limit)
            copies -= page >= limit
            if page >= limit and (copies < 0 or key not in self._host_cache):
                break
            found.append(page if page < limit else None)
        return found

    def load(self, keys: abc.Sequence[PageKey], known: abc.Sequence[int | None]) -> list[int]:
        """Order copies from the host cache into fresh pages; the pages of the whole known prefix.

        known: what `known` returned for these keys. The caller has acquired its pages and checked that there are enough
        fresh ones.
        """
        offloaded = [key for key, page in zip(keys, known, strict=False) if page is None]
        for key in offloaded:
            self._host_cache.touch(key)
        fresh = dict(zip(offloaded, self.allocate(len(offloaded), newcomers=1) or (), strict=True))
        for key, page in fresh.items():
            assert key in self._host_cache, "making room for copies has cost one of them"
            self.pages.register(page, key)
            self._moves.append(PageMove(MoveKind.LOAD, key, self.index, page))
        return [fresh[key] if page is None else page for key, page in zip(keys, known, strict=False)]

    def set_past(self, past: int, forgone_ms: float = 0.0) -> None:
        """The next pass spans `past` columns: cached pages beyond go to the host cache, or are forgotten without one.

        forgone_ms: what it loses for not having another width; 0 once it has the best one.
        """
        if self._shapes.segmented:
            return
        if self._host_cache.limit:
            for page in self.pages.cached_above(past):
                key = self.pages.key(page)
                assert key is not None
                self._offload(page, key)
        self.pages.trim(past)
        self.forgone_ms = self.forgone_ms + forgone_ms if past == self.width and forgone_ms else 0.0
        self.width = past

    def extent(self) -> Extent:
        """The columns that the next pass must span, and those it had better span.

        With a host cache, cached pages ask for no width, and a pool is re-laid narrower only to half of it or less.
        Segmented shapes have no columns to span: what counts is how many their rows read.
        """
        if self._shapes.segmented:
            read = min(sum(sequence.computed for sequence in self.decode_queue.values()), self._shapes.max_past)
            first = min(self.prefill_queue.values(), key=lambda sequence: sequence.rank, default=None)
            return Extent(read, read, read, prompt_past=first.computed if first else 0)
        referenced = max((self._written(sequence) for sequence in self.running()), default=0)
        if not self._host_cache.limit:
            return Extent(
                referenced, max(referenced, self.pages.high_water(with_cached=True)), self.width, self.forgone_ms
            )
        preferred = max(referenced, self.width) if 2 * self._shapes.round_past(referenced) > self.width else referenced
        return Extent(referenced, preferred, self.width, self.forgone_ms)

    def _written(self, sequence: Sequence) -> int:
        """Columns up to the end of the highest page that holds something; pages reserved for later hold nothing yet."""
        pages = sequence.pages[: pages_for(sequence.computed, self.pages.page_columns)]
        return (max(pages, default=-1) + 1) * self.pages.page_columns

    def note_prefills(
        self, taken: abc.Sequence[tuple[Sequence, int]], kv_only: abc.Sequence[tuple[Sequence, int]]
    ) -> None:
        """A pass is planned: whether prompts must come first in the next one, because this has no room for any.

        kv_only: of a pass that decodes, what prompts could compute in a KV-only shape, which never decodes: so it has
        its turn after every pass that does.
        """
        waits, has_rows = (any(not s.is_pooled for s in part) for part in (self.prefill_queue.values(), dict(taken)))
        is_due = any(rows > 0 and not sequence.is_pooled for sequence, rows in kv_only)
        self.prefill_starved = waits and (not has_rows or is_due)

    def enqueue(self, sequence: Sequence) -> None:
        """Put a sequence that holds its pages into the queue of what it needs next."""
        if sequence.rows_wanted > sequence.decode_rows:
            sequence.move(SequenceStatus.PREFILL)
            self.prefill_queue[sequence.id] = sequence
        else:
            sequence.move(SequenceStatus.DECODE)
            self.decode_queue[sequence.id] = sequence

    def register(self, sequence: Sequence) -> None:
        """Put the pages that just became full of computed tokens into the prefix cache."""
        size = self.pages.page_columns
        full = sequence.computed // size
        if full <= sequence.registered:
            return
        sequence.extend_keys(full * size, size)
        full = min(full, len(sequence.keys))  # those of a run that ends with a block come together
        for page in range(sequence.registered, full):
            self.pages.register(sequence.pages[page], sequence.keys[page])
        sequence.registered = full

    def rewind(self, sequence: Sequence, generated: int) -> bool:
        """See `rewind`. False when a page that must be computed again is not to be had: others share what was kept."""
        rewind(sequence, self.pages, generated)
        if sequence.status is SequenceStatus.WAITING:
            return True
        self.prefill_queue.pop(sequence.id, None)
        self.decode_queue.pop(sequence.id, None)
        sequence.move(SequenceStatus.WAITING)
        self.enqueue(sequence)
        return self.reserved <= self.available()

    def hand_over(self, sequence: Sequence, pages: list[int]) -> None:
        """Give a newcomer the pages that hold its computed beginning."""
        sequence.pool, sequence.pages, sequence.registered = self.index, pages, len(pages)
        sequence.computed = len(pages) * self.pages.page_columns

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the queues and its pages back."""
        self.prefill_queue.pop(sequence.id, None)
        self.decode_queue.pop(sequence.id, None)
        self.pages.release(sequence.pages)
        sequence.pages = []

    def _offload(self, page: int, key: PageKey) -> None:
        if key not in self._host_cache:
            self._moves.append(PageMove(MoveKind.OFFLOAD, key, self.index, page))
        self._moves.extend(PageMove(MoveKind.EVICT, old) for old in self._host_cache.put(key))
