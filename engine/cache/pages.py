"""The pages of one past-KV pool: which are free, shared, or cached for their contents. No column ever moves."""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.cache.prefix import PageKey


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A read-only copy for invariant checks: reference counts by page, free pages, cached pages, keys by page."""

    references: tuple[int, ...]
    free: frozenset[int]
    cached: frozenset[int]
    keys: dict[int, PageKey]


class PagePool:
    """Pages of `page_columns` columns, handed out lowest first.

    A shared page counts once, however many sequences refer to it. Where sequences have memory of their own this is what
    they hold, too, but for what `graphs/sequence_caches.py` copies.

    The first `reserved` pages are never handed out. Each of the others is in exactly one state: free; referenced by one
    or more sequences; or cached - unreferenced, but its contents are known by key - until it is needed, least recently
    used first.
    """

    def __init__(self, columns: int, page_columns: int, reserved: int = 0) -> None:
        self.page_columns = page_columns
        self.page_count = columns // page_columns
        self.reserved = reserved
        # Sole owner of these six; every method leaves them consistent (see scheduling/invariants.py).
        self._free = list(range(reserved, self.page_count))
        self._references = [0] * self.page_count
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, PageKey] = {}
        self._page_of: dict[PageKey, int] = {}
        self._emptied: set[int] = set()  # became free since `take_emptied`, and still are

    @property
    def available(self) -> int:
        """Pages an allocation could get now: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def referenced(self) -> int:
        """Pages at least one sequence uses."""
        return self.page_count - self.available

    def available_below(self, limit: int) -> int:
        """The same, of the pages below number `limit`."""
        if limit >= self.page_count:
            return self.available
        return sum(page < limit for page in self._free) + sum(page < limit for page in self._cached)

    def allocate(self, count: int, limit: int | None = None) -> tuple[int, ...] | None:
        """Take `count` pages with one reference each: lowest free first, then least recently used; None if short.

        limit: pages of this number and above are left alone.
        """
        limit = self.page_count if limit is None else limit
        if count > self.available_below(limit):
            return None
        missing = count - sum(page < limit for page in self._free)
        for page in [page for page in self._cached if page < limit][: max(0, missing)]:
            self._forget(page)
        pages = tuple(heapq.heappop(self._free) for _ in range(count))
        self._emptied.difference_update(pages)
        for page in pages:
            self._references[page] = 1
        return pages

    def claim_lowest(self, count: int) -> tuple[tuple[int, ...], dict[int, PageKey]] | None:
        """Like `allocate`, but the lowest pages, cached or free; also what the cached ones among them contained."""
        if count > self.available:
            return None
        lowest = heapq.nsmallest(count, [*self._free, *self._cached])
        contents = {page: self._key_of[page] for page in lowest if page in self._cached}
        for page in contents:
            self._forget(page)
        pages = self.allocate(count)
        assert pages is not None
        return pages, contents

    def acquire(self, pages: Iterable[int]) -> None:
        """Add a reference to pages found by `lookup`."""
        for page in pages:
            self._cached.pop(page, None)
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference of each page; the last one leaves it cached (if its contents are keyed) or free."""
        # Reversed, so that the end of a prefix is forgotten before its beginning.
        for page in reversed(tuple(pages)):
            assert self._references[page] > 0, f"page {page} released twice"
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self._key_of:
                self._cached[page] = None
            else:
                self._empty(page)

    def register(self, page: int, key: PageKey) -> None:
        """Say what a full, referenced page contains. The first page with a key wins; a duplicate stays private."""
        if key not in self._page_of and page not in self._key_of:
            self._key_of[page] = key
            self._page_of[key] = page

    def lookup(self, keys: Sequence[PageKey]) -> tuple[int, ...]:
        """Pages of the longest known prefix of `keys`."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return tuple(pages)

    def keyed(self) -> list[tuple[int, PageKey]]:
        """Pages of known contents: the cached ones, least recently used first, then those in use."""
        used = [page for page in self._key_of if page not in self._cached]
        return [(page, self._key_of[page]) for page in (*self._cached, *used)]

    def key(self, page: int) -> PageKey | None:
        """What a page is known to contain."""
        return self._key_of.get(page)

    def cached_above(self, columns: int) -> tuple[int, ...]:
        """Cached pages that lie, even in part, at or above `columns`; least recently used first."""
        return tuple(page for page in self._cached if (page + 1) * self.page_columns > columns)

    def trim(self, columns: int) -> None:
        """Forget cached pages that lie, even in part, at or above `columns`."""
        for page in self.cached_above(columns):
            self._forget(page)

    def high_water(self, with_cached: bool) -> int:
        """Columns up to the end of the highest referenced (or also cached) page."""
        for page in range(self.page_count - 1, -1, -1):
            if self._references[page] or (with_cached and page in self._cached):
                return (page + 1) * self.page_columns
        return 0

    def take_emptied(self) -> frozenset[int]:
        """Pages that became free since the last call and still are: nobody wants what is in them."""
        emptied = frozenset(self._emptied)
        self._emptied.clear()
        return emptied

    def snapshot(self) -> PoolSnapshot:
        """Copy the state for a check."""
        return PoolSnapshot(tuple(self._references), frozenset(self._free), frozenset(self._cached), dict(self._key_of))

    def __repr__(self) -> str:
        used, cached, free = self.referenced, len(self._cached), len(self._free)
        return f"<PagePool {self.page_count} pages: {used} used, {cached} cached, {free} free>"

    def _forget(self, page: int) -> None:
        del self._cached[page]
        del self._page_of[self._key_of.pop(page)]
        self._empty(page)

    def _empty(self, page: int) -> None:
        heapq.heappush(self._free, page)
        self._emptied.add(page)
