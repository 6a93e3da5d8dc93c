"""Blocks of the KV cache: which are free, which hold a known prefix, which have a copy in host memory. No arrays.
A prefix in host memory need not be computed again, and it widens no step, which the same prefix in a pool might."""

import heapq
import struct
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, takewhile
from math import lcm

from engine.request import PromptImage

BlockKey = bytes
GONE = -1  # in the place of a block that lies behind what a sequence sees, so that it holds none there


@dataclass(frozen=True, slots=True)
class Sight:
    """How far back rows see. window: slots, their own among them; 0 = all. rows: most of a step."""

    window: int
    block_size: int
    rows: int

    @property
    def most(self) -> int:
        """Most blocks that a sequence sees, while a step of all the rows is its own."""
        return -(-(self.window + self.rows) // self.block_size) + 1

    def first_seen(self, slots: int) -> int:
        """The first block that the row behind so many slots sees."""
        return max(0, slots - self.window + 1) // self.block_size if self.window else 0

    def held(self, tokens: int) -> int:
        """Most blocks that so many tokens ever take at once."""
        blocks = -(-tokens // self.block_size)
        return min(blocks, self.most) if self.window else blocks

    def usable(self, there: Sequence[bool]) -> int:
        """How many blocks of a prefix a newcomer can go on from, by which of them are there."""
        usable = run = 0
        for count, is_there in enumerate(there, 1):
            run = run + 1 if is_there else 0
            if run >= count - self.first_seen(count * self.block_size):
                usable = count
        return usable


def blocks_at_once(block_size: int, block_length: int) -> int:
    """The fewest blocks that end where a block ends. Its keys depend on all its tokens: it is shared whole."""
    return lcm(block_size, max(1, block_length)) // block_size


def block_keys(
    tokens: Sequence[int],
    block_size: int,
    known: Sequence[BlockKey] = (),
    salt: bytes = b"",
    block_length: int = 0,
    images: Sequence[PromptImage] = (),
) -> list[BlockKey]:
    """One key per full block of `tokens`; a key covers every token up to the end of its block, and the salt.
    images: of the prompt; a key covers the digests of those that begin before its end.
    block_length: rows of so many tokens see each other both ways, 0 = causal. Then a key covers the tokens up to the
    end of `blocks_at_once` blocks, and there are keys for whole runs of them only.
    `known` are the keys of the first blocks, computed before with the same salt; they are taken as they are. A caller
    that lacks the salt (at most 64 bytes) cannot find out, by time or by count, whether a prefix is cached
    (CVE-2025-46570)."""
    keys = list(known)
    run = blocks_at_once(block_size, block_length)
    root = f"blocks of {block_length}".encode() if block_length else b""
    for block in range(len(keys), len(tokens) // block_size // run * run):
        first = block - block % run
        span = tokens[first * block_size : (first + run) * block_size]
        digest = blake2b(keys[-1] if keys else root, digest_size=16, key=salt)
        digest.update(struct.pack(f"<{len(span)}I", *span))
        start, end = first * block_size, (first + run) * block_size
        for image in images:
            if image.first < end and start < image.first + image.tokens:
                digest.update(struct.pack("<q", image.first - start) + image.digest)
        keys.append(digest.digest())
    return keys


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A read-only copy for invariant checks: reference counts by block, free blocks, cached blocks, keys by block."""

    references: tuple[int, ...]
    free: frozenset[int]
    cached: frozenset[int]
    keys: dict[int, BlockKey]


class BlockPool:
    """Blocks of `block_size` slots, handed out lowest first.
    A shared block counts once, however many sequences refer to it. Where sequences have memory of their own this is
    what they hold, too, but for what `runtime/kv.py` copies.
    The first `reserved` blocks are never handed out. Each of the others is in exactly one state: free; referenced by
    one or more sequences; or cached (unreferenced, but its contents are known by key) until it is needed, least
    recently used first."""

    def __init__(self, slots: int, block_size: int, reserved: int = 0) -> None:
        self.block_size = block_size
        self.block_count = slots // block_size
        self.reserved = reserved
        # Sole owner of these six; every method leaves them consistent (see `core/checks.py`).
        self._free = list(range(reserved, self.block_count))
        self._references = [0] * self.block_count
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._key_of: dict[int, BlockKey] = {}
        self._block_of: dict[BlockKey, int] = {}
        self._emptied: set[int] = set()  # became free since `take_emptied`, and still are

    @property
    def available(self) -> int:
        """Blocks an allocation could get now: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def referenced(self) -> int:
        """Blocks at least one sequence uses."""
        return self.block_count - self.available

    def unshared(self, blocks: Iterable[int]) -> int:
        """How many of the blocks only one sequence uses."""
        return sum(self._references[block] == 1 for block in blocks)

    def available_below(self, limit: int) -> int:
        """Blocks an allocation could get now, of those below number `limit`."""
        if limit >= self.block_count:
            return self.available
        return sum(block < limit for block in self._free) + sum(block < limit for block in self._cached)

    def allocate(self, count: int, limit: int | None = None) -> tuple[int, ...] | None:
        """Take `count` blocks with one reference each: lowest free first, then least recently used; None if short.
        limit: blocks of this number and above are left alone."""
        limit = self.block_count if limit is None else limit
        if count > self.available_below(limit):
            return None
        missing = count - sum(block < limit for block in self._free)
        for block in [block for block in self._cached if block < limit][: max(0, missing)]:
            self._forget(block)
        blocks = tuple(heapq.heappop(self._free) for _ in range(count))
        self._emptied.difference_update(blocks)
        for block in blocks:
            self._references[block] = 1
        return blocks

    def claim_lowest(self, count: int) -> tuple[tuple[int, ...], dict[int, BlockKey]] | None:
        """Like `allocate`, but the lowest blocks, cached or free; also what the cached ones among them contained."""
        if count > self.available:
            return None
        lowest = heapq.nsmallest(count, [*self._free, *self._cached])
        contents = {block: self._key_of[block] for block in lowest if block in self._cached}
        for block in contents:
            self._forget(block)
        blocks = self.allocate(count)
        assert blocks is not None
        return blocks, contents

    def acquire(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._cached.pop(block, None)
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        # Reversed, so that the end of a prefix is forgotten before its beginning.
        for block in reversed(tuple(blocks)):
            assert self._references[block] > 0, f"block {block} released twice"
            self._references[block] -= 1
            if not self._references[block] and block in self._key_of:
                self._cached[block] = None
            elif not self._references[block]:
                self._empty(block)

    def register(self, block: int, key: BlockKey) -> None:
        if key not in self._block_of and block not in self._key_of:
            self._key_of[block] = key
            self._block_of[key] = block

    def disown(self, key: BlockKey) -> None:
        """The block of a key is not what others can use any more: the next one that has its contents is."""
        block = self._block_of.get(key)
        if block is not None and block in self._cached:
            self._forget(block)
        elif block is not None:
            del self._block_of[self._key_of.pop(block)]

    def lookup(self, keys: Sequence[BlockKey]) -> tuple[int, ...]:
        """The blocks of the first keys, up to one that is not known."""
        return tuple(self._block_of[key] for key in takewhile(self._block_of.__contains__, keys))

    def keyed(self) -> list[tuple[int, BlockKey]]:
        """Blocks of known contents: the cached ones, least recently used first, then those in use."""
        used = [block for block in self._key_of if block not in self._cached]
        return [(block, self._key_of[block]) for block in (*self._cached, *used)]

    def key(self, block: int) -> BlockKey | None:
        return self._key_of.get(block)

    def cached_above(self, slots: int) -> tuple[int, ...]:
        """Cached blocks that lie, even in part, at or above `slots`; least recently used first."""
        return tuple(block for block in self._cached if (block + 1) * self.block_size > slots)

    def trim(self, slots: int) -> None:
        """Forget cached blocks that lie, even in part, at or above `slots`."""
        for block in self.cached_above(slots):
            self._forget(block)

    def high_water(self, with_cached: bool) -> int:
        """KV slots up to the end of the highest referenced (or also cached) block."""
        for block in range(self.block_count - 1, -1, -1):
            if self._references[block] or (with_cached and block in self._cached):
                return (block + 1) * self.block_size
        return 0

    def take_emptied(self) -> frozenset[int]:
        """Blocks that became free since the last call and still are: nobody wants what is in them."""
        emptied, self._emptied = frozenset(self._emptied), set()
        return emptied

    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot(tuple(self._references), frozenset(self._free), frozenset(self._cached), dict(self._key_of))

    def _forget(self, block: int) -> None:
        del self._cached[block]
        del self._block_of[self._key_of.pop(block)]
        self._empty(block)

    def _empty(self, block: int) -> None:
        heapq.heappush(self._free, block)
        self._emptied.add(block)


class RecentKeys:
    """Keys of at most `limit` prefixes, least recently used first: of blocks copied to the host, or of snapshots."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._keys: OrderedDict[BlockKey, None] = OrderedDict()

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[BlockKey]:
        return iter(self._keys)

    def touch(self, key: BlockKey) -> None:
        self._keys.move_to_end(key)

    def put(self, key: BlockKey, needed: Collection[BlockKey] = ()) -> list[BlockKey]:
        """Add a key, or mark it as just used. Returns what has to go, so that `limit` holds; nothing that is needed."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        surplus = max(0, len(self._keys) - self.limit)
        old = list(islice((other for other in self._keys if other not in needed and other != key), surplus))
        for other in old:
            del self._keys[other]
        return old

    def discard(self, key: BlockKey) -> bool:
        return key in self._keys and self._keys.pop(key) is None
