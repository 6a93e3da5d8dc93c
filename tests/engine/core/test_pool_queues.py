"""A prefix of which some blocks are in the pool and others in the host cache; blocks that are reserved."""

from engine.bundle.variant import ShapeTable, StepShape
from engine.core.kv_blocks import BlockPool, RecentKeys
from engine.core.kv_queues import PoolQueues
from engine.core.plan import BlockMove, MoveKind
from engine.core.sequence import Sequence, SequenceStatus
from engine.request import Request, SamplingParams

KEYS = [bytes([number]) * 16 for number in range(6)]


def pool_of(blocks: int, host_cache: RecentKeys) -> tuple[PoolQueues, list[BlockMove]]:
    moves: list[BlockMove] = []
    return PoolQueues(BlockPool(16 * blocks, 16), ShapeTable((), 16, 16 * blocks), host_cache, moves), moves


def keep(pool: PoolQueues, *keys: bytes) -> tuple[int, ...]:
    """Blocks that hold what the keys say, and nobody uses."""
    blocks = pool.blocks.allocate(len(keys))
    assert blocks is not None
    for block, key in zip(blocks, keys, strict=True):
        pool.blocks.register(block, key)
    pool.blocks.release(blocks)
    return blocks


def prefill(name: str, tokens: int) -> Sequence:
    request = Request(name, tuple(range(tokens)), SamplingParams(max_tokens=1))
    return Sequence(request, 0, 0, list(request.prompt_ids), SequenceStatus.PREFILL)


def test_gaps_in_the_pool_are_filled_from_the_host_cache() -> None:
    host_cache = RecentKeys(10)
    pool, moves = pool_of(8, host_cache)
    for key in (KEYS[0], KEYS[3], KEYS[4]):
        host_cache.put(key)
    first, second = keep(pool, KEYS[1], KEYS[2])
    known = pool.known(KEYS)
    assert known == [None, first, second, None, None]
    pool.blocks.acquire((first, second))
    blocks = pool.load(KEYS, known)
    assert blocks[1:3] == [first, second] and len(set(blocks)) == 5
    restored = [(move.key, move.block) for move in moves if move.kind is MoveKind.LOAD]
    assert restored == [(KEYS[0], blocks[0]), (KEYS[3], blocks[3]), (KEYS[4], blocks[4])]
    assert list(pool.blocks.lookup(KEYS)) == blocks


def test_making_room_for_copies_costs_none_of_them() -> None:
    """Two fresh blocks hold something that goes to the host cache first, which holds four copies: all of both stay."""
    for size, used in ((2, 1), (3, 1), (4, 2), (5, 2)):
        host_cache = RecentKeys(size)
        pool, moves = pool_of(3, host_cache)
        host_cache.put(KEYS[0])
        host_cache.put(KEYS[1])
        keep(pool, *KEYS[3:])
        known = pool.known(KEYS)
        assert known == [None] * used
        assert len(pool.load(KEYS, known)) == used
        assert [move.key for move in moves if move.kind is MoveKind.LOAD] == KEYS[:used]
        assert not {move.key for move in moves if move.kind is MoveKind.EVICT} & {*KEYS[:used]}


def test_decodes_do_not_get_what_is_reserved_for_prompts() -> None:
    pool, _ = pool_of(4, RecentKeys(0))
    decoding, waiting = prefill("decoding", 17), prefill("waiting", 33)
    for sequence in (decoding, waiting):
        pool.prefill_queue[sequence.id] = sequence
    assert pool.reserved == 5
    del pool.prefill_queue["decoding"]
    decoding.move(SequenceStatus.DECODE)
    assert pool.grow(decoding, 1) and not pool.grow(decoding, 2)
    assert pool.grow(waiting, 3) and pool.reserved == 0
    assert not pool.grow(decoding, 2) and len(decoding.blocks) == 1


def test_those_inside_count_for_the_columns_that_they_share() -> None:
    """One row spans 15 blocks, two need the shape of 64 rows, which spans 12."""
    shapes = ShapeTable((StepShape(1, 255), StepShape(64, 192)), 64, 255)
    pool = PoolQueues(BlockPool(240, 16), shapes, RecentKeys(0), [])
    assert (pool.available(), pool.available(newcomers=1), pool.available(newcomers=2)) == (15, 15, 12)
    pool.prefill_queue["a"] = prefill("a", 5)
    assert (pool.available(), pool.available(newcomers=1)) == (15, 12)
    pool.decode_queue["b"] = prefill("b", 5)
    assert (pool.available(), pool.available(newcomers=1)) == (12, 12)


def test_a_cached_block_beyond_what_is_shared_keeps_nobody_out() -> None:
    shapes = ShapeTable((StepShape(1, 255), StepShape(64, 192)), 64, 255)
    pool = PoolQueues(BlockPool(240, 16), shapes, RecentKeys(0), [])
    pool.prefill_queue["a"] = prefill("a", 5)
    blocks = keep(pool, *(bytes([number]) for number in range(15)))
    assert pool.available(newcomers=1) == 12
    pool.blocks.acquire(blocks[14:])
    assert pool.available(newcomers=1) == 0


def test_what_staying_costs_adds_up_until_the_width_is_another_or_the_best() -> None:
    pool, _ = pool_of(8, RecentKeys(0))
    assert pool.extent().regret_ms == 0.0
    found = []
    for past, regret_ms in ((64, 3.0), (64, 3.0), (64, 4.0), (128, 5.0), (128, 2.0), (128, 0.0), (128, 1.0)):
        pool.set_past(past, regret_ms)
        found.append((pool.extent().width, pool.extent().regret_ms))
    assert found == [(64, 0.0), (64, 3.0), (64, 7.0), (128, 0.0), (128, 2.0), (128, 0.0), (128, 1.0)]
