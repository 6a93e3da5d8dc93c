"""The block pool against a model kept by hand, under random operations."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.kv_blocks import BlockPool, block_keys


def test_lowest_first_and_none_when_short() -> None:
    pool = BlockPool(96, 16)
    assert pool.allocate(2) == (0, 1)
    assert pool.allocate(3) == (2, 3, 4)
    pool.release((1, 3))
    assert pool.allocate(2) == (1, 3)
    assert pool.allocate(2) is None
    assert pool.available == 1


def test_keyed_blocks_are_kept_found_and_evicted_oldest_end_first() -> None:
    pool = BlockPool(64, 16)
    keys = block_keys(list(range(48)), 16)
    blocks = pool.allocate(3)
    assert blocks is not None
    for block, key in zip(blocks, keys, strict=True):
        pool.register(block, key)
    pool.release(blocks)
    assert pool.referenced == 0
    assert pool.lookup(keys) == blocks
    assert pool.allocate(2) == (2, 3)  # the free block, and the end of the cached prefix
    assert pool.lookup(keys) == blocks[:2]


def test_shared_blocks_live_until_the_last_holder() -> None:
    pool = BlockPool(32, 16)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.acquire(blocks)
    pool.release(blocks)
    assert pool.referenced == 1
    pool.release(blocks)
    assert pool.referenced == 0
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks)


def test_trim_forgets_only_kept_blocks_above() -> None:
    pool = BlockPool(64, 16)
    low, high = pool.allocate(1), pool.allocate(2)
    assert low and high
    keys = block_keys(list(range(48)), 16)
    for block, key in zip((*low, *high), keys, strict=True):
        pool.register(block, key)
    pool.release((*low, *high))
    assert pool.high_water(with_cached=True) == 48
    assert pool.high_water(with_cached=False) == 0
    pool.trim(20)
    assert pool.high_water(with_cached=True) == 16


def test_keys_are_chained() -> None:
    one, two = block_keys([1] * 32, 16), block_keys([2] * 16 + [1] * 16, 16)
    assert one[0] != one[1] and one[1] != two[1]
    assert block_keys([1] * 32 + [5], 16, one[:1]) == one


def test_blocks_above_a_limit_are_left_alone() -> None:
    pool = BlockPool(96, 16)
    first = pool.allocate(3)
    assert first == (0, 1, 2)
    for block in first:
        pool.register(block, bytes([block]))
    pool.release(first)
    assert (pool.available_below(4), pool.available_below(6), pool.available) == (4, 6, 6)
    assert pool.allocate(5, limit=4) is None
    assert pool.allocate(2, limit=4) == (2, 3)  # free, and cached but not used for longest; 4 and 5 stay free
    assert pool.lookup([bytes([0]), bytes([1])]) == (0, 1)


def test_a_cached_block_that_is_used_again_is_nobody_elses() -> None:
    pool = BlockPool(32, 16)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.register(blocks[0], b"a")
    pool.release(blocks)
    pool.acquire(pool.lookup([b"a"]))
    assert (pool.referenced, pool.available, pool.cached_above(0)) == (1, 1, ())
    assert pool.allocate(2) is None and pool.allocate(1) == blocks[1:]
    pool.trim(0)
    assert pool.lookup([b"a"]) == blocks[:1]
    pool.release(blocks[:1])
    assert pool.cached_above(0) == blocks[:1]


class Pool(RuleBasedStateMachine):
    """Holders own lists of blocks; the pool must agree about every block at all times."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(16 * 12, 16)
        self.holders: list[tuple[int, ...]] = []
        self.next_key = 0

    @rule(count=st.integers(1, 5))
    def allocate(self, count: int) -> None:
        before = self.pool.available
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > before)
        if blocks is not None:
            self.holders.append(blocks)

    @rule(count=st.integers(1, 5))
    def claim_lowest(self, count: int) -> None:
        shot = self.pool.snapshot()
        claimed = self.pool.claim_lowest(count)
        assert (claimed is None) == (count > len(shot.free) + len(shot.cached))
        if claimed is not None:
            assert list(claimed[0]) == sorted(shot.free | shot.cached)[:count]
            assert claimed[1] == {block: shot.keys[block] for block in claimed[0] if block in shot.cached}
            self.holders.append(claimed[0])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.holders))
        self.pool.register(blocks[0], f"key{self.next_key}".encode())
        self.next_key += 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        keys = sorted(set(self.pool.snapshot().keys.values()))
        if keys:
            found = self.pool.lookup([data.draw(st.sampled_from(keys))])
            self.pool.acquire(found)
            self.holders.append(found)

    @rule(columns=st.integers(0, 200))
    def trim(self, columns: int) -> None:
        self.pool.trim(columns)
        assert all((block + 1) * 16 <= columns for block in self.pool.snapshot().cached)

    @invariant()
    def agrees(self) -> None:
        shot = self.pool.snapshot()
        for block in range(self.pool.block_count):
            assert shot.references[block] == sum(holder.count(block) for holder in self.holders)
            assert (shot.references[block] > 0) + (block in shot.free) + (block in shot.cached) == 1
        assert shot.cached <= set(shot.keys)
        assert len(set(shot.keys.values())) == len(shot.keys)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
