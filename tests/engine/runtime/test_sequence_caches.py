"""Where keys and values of sequences lie: which cache it continues, what is copied, what is given back."""

import sys

import msgspec
import numpy as np
import psutil
import pytest

from engine.bundle.model_spec import CacheGroup
from engine.bundle.variant import StepShape
from engine.runtime import kv
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.kv import SequenceCaches
from engine.runtime.kv_memory import COLUMN_STEP, GroupColumns, SequenceCache
from tests.engine.runtime.held import held_bytes, owners
from tests.engine.worker.segmented_runtime import smallest_manifest

Caches = SequenceCaches[None]
SIZE = 4
Rows = tuple[tuple[int, ...], int, tuple[int, ...]]  # blocks of a sequence, its computed columns, its new tokens


@pytest.fixture
def caches() -> Caches:
    return SequenceCaches(smallest_manifest())


def run(caches: Caches, *sequences: Rows, room: int = 0, kept: int | None = None) -> list[SequenceCache[None]]:
    """One step: each sequence writes its new tokens as keys and values, of which the first `kept` count."""
    segments, rows, columns, start = [], [], [], 0
    for blocks, past, tokens in sequences:
        segments.append(
            PackedSegment(start, len(tokens), blocks[: -(-past // SIZE)], past, max(room, past + len(tokens)))
        )
        for index in range(len(tokens) if kept is None else kept):
            place = past + index
            rows.append(start + index)
            columns.append(blocks[place // SIZE] * SIZE + place % SIZE)
        start += len(tokens)
    zeros = np.zeros(start, np.int32)
    caches.place(PackedBatch(StepShape(start, 0), zeros, zeros, zeros[:0].astype(np.int64), tuple(segments), SIZE))
    for (_, _, tokens), (segment, cache) in zip(sequences, caches.last, strict=True):
        cache.keys[0, 0, 0, cache.new_columns(segment), 0] = tokens
        cache.values[0, 0, 0, cache.new_columns(segment), 0] = tokens
    caches.keep(rows, columns)
    return [cache for _, cache in caches.last]


def tokens_of(cache: SequenceCache[None], count: int) -> list[int]:
    tokens: list[int] = []
    for part, columns in ((cache.base, cache.base_columns), (cache, count - cache.base_columns)):
        if part is not None:
            assert (part.keys == part.values)[..., :columns, :].all()
            tokens += [int(token) for token in part.keys[0, 0, 0, :columns, 0]]
    return tokens


def test_a_sequence_goes_on_in_its_own_cache(caches: Caches) -> None:
    (first,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    (second,) = run(caches, ((3, 1), 5, (6,)))
    assert second is first
    assert tokens_of(first, 6) == [1, 2, 3, 4, 5, 6]


def test_a_cache_that_is_not_in_the_step_is_bound_to_nothing(caches: Caches) -> None:
    (first,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    first.bound_at((1, 1), lambda _: None)
    run(caches, ((3, 1), 5, (6,)))
    assert first.bound
    run(caches, ((8,), 0, (7,)))
    assert not first.bound


def test_a_shared_block_is_copied_while_its_owner_goes_on(caches: Caches) -> None:
    (owner,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    owner_again, sharer = run(caches, ((3, 1), 5, (6,)), ((3, 7), 4, (9, 9)))
    assert owner_again is owner and sharer is not owner
    assert tokens_of(sharer, 6) == [1, 2, 3, 4, 9, 9]
    assert tokens_of(owner, 6) == [1, 2, 3, 4, 5, 6]


def test_a_cache_that_ends_with_the_shared_blocks_is_gone_on_with(caches: Caches) -> None:
    (first,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    caches.free((1,))  # its sequence has ended; only the full block is worth keeping
    heir, second = run(caches, ((3, 8), 4, (6,)), ((3, 9), 4, (7,)))
    assert heir is first and second is not first
    assert (tokens_of(heir, 5), tokens_of(second, 5)) == ([1, 2, 3, 4, 6], [1, 2, 3, 4, 7])


def test_blocks_from_two_caches_are_put_side_by_side(caches: Caches) -> None:
    run(caches, ((0, 1), 0, (1, 2, 3, 4, 5, 6, 7, 8)))
    run(caches, ((4, 5, 6), 0, tuple(range(11, 22))))
    (third,) = run(caches, ((0, 5, 6, 9), 11, (30,)))  # its own block 6 is not full: nobody else can have it
    assert tokens_of(third, 12) == [1, 2, 3, 4, 15, 16, 17, 18, 19, 20, 21, 30]


def test_what_is_not_kept_is_overwritten(caches: Caches) -> None:
    (first,) = run(caches, ((3,), 0, (1, 2, 3)), kept=2)
    (second,) = run(caches, ((3,), 2, (7,)))
    assert second is first
    assert tokens_of(first, 3) == [1, 2, 7]


def test_a_step_of_which_nothing_is_kept_leaves_nothing(caches: Caches) -> None:
    run(caches, ((3,), 0, (1, 2)), kept=0)
    assert owners(caches) == []


def test_a_block_with_a_new_owner_leaves_its_old_cache(caches: Caches) -> None:
    (old,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    run(caches, ((1,), 0, (8, 8)))
    (sharer,) = run(caches, ((3, 9), 4, (6,)))
    assert sharer is old  # block 1 is elsewhere now, so the old cache ends with block 3
    assert tokens_of(sharer, 5) == [1, 2, 3, 4, 6]


def test_memory_is_given_back_with_the_last_block(caches: Caches) -> None:
    run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    caches.free((1,))
    assert len(owners(caches)) == 1
    caches.free((3,))
    assert owners(caches) == []
    caches.free((3, 77))  # what was never written is nowhere


def test_only_the_cache_that_is_too_small_moves(caches: Caches) -> None:
    first, second = run(caches, ((0,), 0, (1, 2)), ((20,), 0, (3,)))
    first.bound[1, 1] = None
    second.bound[1, 1] = None
    before = first.keys, second.keys
    run(caches, (tuple(range(20)), 2, tuple(range(70))), ((20,), 1, (4,)))
    assert first.columns == 128 and first.keys is not before[0] and not first.bound
    assert second.keys is before[1] and second.bound
    assert tokens_of(first, 72) == [1, 2, *range(70)] and caches.widened == 1


def test_what_can_be_foreseen_is_there_from_the_start(caches: Caches) -> None:
    (cache,) = run(caches, ((0,), 0, (1, 2)), room=130)
    assert cache.columns == 192
    run(caches, (tuple(range(48)), 2, tuple(range(188))))
    assert caches.widened == 0


def test_what_a_finished_sequence_did_not_use_is_given_back(caches: Caches) -> None:
    names = tuple(range(20))
    (cache,) = run(caches, (names, 0, tuple(range(78))), room=150)
    assert cache.columns == 192
    run(caches, ((30,), 0, (1,)))
    assert cache.columns == 192  # it only waits for its turn
    run(caches, (names, 78, (78,)))
    caches.free((19,))  # it has ended; its last block is not full
    run(caches, ((30,), 1, (2,)))
    assert cache.columns == 76 and tokens_of(cache, 76) == list(range(76))
    (heir,) = run(caches, ((*names[:19], 40), 76, (5,)))
    assert heir is cache and tokens_of(heir, 77) == [*range(76), 5]


FLOATS = msgspec.structs.replace(smallest_manifest(), kv_dtype="float32", quant="int8")


def finished(caches: Caches, *values: float) -> SequenceCache[None]:
    """A cache of blocks 0 and 1 that has these keys, after its sequence has ended and others went on."""
    (cache,) = run(caches, ((0, 1, 2), 0, tuple(range(9))))
    cache.keys[0, 0, 0, : len(values), 0] = values
    caches.free((2,))
    for past in range(2):
        run(caches, ((30,), past, (1,)))
    return cache


def test_a_finished_sequence_rests_as_float16_and_is_computed_with_as_float32() -> None:
    caches: Caches = SequenceCaches(FLOATS)
    cache = finished(caches, 1 / 3, 2.5)
    assert cache.keys.dtype == cache.values.dtype == np.float16 and cache.columns == 8
    heir, sharer = run(caches, ((0, 1, 3), 8, (5,)), ((0, 4), 4, (6,)))
    assert heir is cache and heir.keys.dtype == sharer.keys.dtype == np.float32
    for each in (heir, sharer):
        assert each.keys[0, 0, 0, :4, 0].tolist() == [np.float32(np.float16(1 / 3)), 2.5, 2, 3]
    assert caches.widened == 0


def test_of_many_that_finish_together_some_wait_for_the_next_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: Caches = SequenceCaches(FLOATS)
    ended = run(caches, *(((place, place + 1), 0, (1, 2, 3, 4, 5)) for place in (0, 2, 4)))
    monkeypatch.setattr(kv, "MOST_COPIED", 2 * sum(side.nbytes for side in ended[0].sides()))
    caches.free((1, 3, 5))
    for resting in ([True, True, False], [True, True, True]):
        run(caches, ((30,), 0, (1,)))
        assert [cache.is_resting for cache in ended] == resting


@pytest.mark.parametrize("value", [7e4, -7e4, np.nan])
def test_what_float16_cannot_hold_stays_as_it_is(value: float) -> None:
    cache = finished(SequenceCaches(FLOATS), value)
    assert cache.keys.dtype == np.float32 and cache.columns == 8
    np.testing.assert_equal(cache.keys[0, 0, 0, 0, 0], np.float32(value))


def test_where_all_bits_stay_nothing_rests_as_float16() -> None:
    exact = msgspec.structs.replace(FLOATS, quant="fp32")
    for caches in (SequenceCaches(FLOATS, is_uniform=True), SequenceCaches(exact)):
        assert finished(caches).keys.dtype == np.float32


def test_a_copy_in_the_host_cache_comes_back_as_another_block(caches: Caches) -> None:
    run(caches, ((3,), 0, (1, 2, 3, 4)))
    caches.offload(slice(12, 16), b"key")
    caches.free((3,))
    caches.load(slice(40, 44), b"key")
    caches.evict(b"key")
    caches.evict(b"key")
    (cache,) = run(caches, ((10, 11), 4, (5,)))
    assert tokens_of(cache, 5) == [1, 2, 3, 4, 5]


def test_a_copy_goes_to_the_caches_of_another_worker(caches: Caches) -> None:
    run(caches, ((3,), 0, (1, 2, 3, 4)))
    caches.offload(slice(12, 16), b"key")
    other = Caches(smallest_manifest())
    other.put_offloaded(b"key", caches.offloaded(b"key"))
    other.load(slice(40, 44), b"key")
    (cache,) = run(other, ((10, 11), 4, (5,)))
    assert tokens_of(cache, 5) == [1, 2, 3, 4, 5]


def test_what_layers_with_a_window_gave_back_is_zeros_for_a_newcomer() -> None:
    """A row behind 12 columns sees the last five: two blocks of four."""
    caches = Caches(smallest_manifest(window=6))
    blocks = tuple(range(50))
    run(caches, (blocks, 0, tuple(range(100))))
    (old,) = run(caches, (blocks, 100, tuple(range(100))))
    assert old.start > 12
    caches.free_behind((0, 1, 2))
    (made,) = run(caches, ((0, 1, 2, 60), 12, (7,)))
    (behind,) = made.behind
    assert made.start == 4
    assert not behind.keys[..., :8, :].any() and not behind.values[..., :8, :].any()


def test_a_newcomer_has_memory_for_what_its_rows_see_under_a_window() -> None:
    caches = Caches(smallest_manifest(window=6))
    blocks = tuple(range(50))
    run(caches, (blocks, 0, tuple(range(200))))
    (made,) = run(caches, ((*blocks[:25], 60), 100, (7,)))
    assert (made.start, made.columns, made.behind_columns) == (92, 128, COLUMN_STEP)


PREFIX = tuple(range(100, 116))
BLOCKS = (3, 1, 4, 5)


@pytest.fixture
def sharing() -> Caches:
    """A base has two blocks at least."""
    return SequenceCaches(smallest_manifest(), 2 * SIZE)


def held(*caches: SequenceCache[None]) -> int:
    every = {id(part): part for cache in caches for part in (cache, cache.base) if part is not None}
    return sum(part.columns for part in every.values()) * 2 * 8  # a key and a value of 8 bytes


def test_a_long_run_of_blocks_that_are_still_used_becomes_a_base(sharing: Caches) -> None:
    (owner,) = run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1, 2)), room=200)
    first, owner_now = run(sharing, ((*BLOCKS, 10), 16, (7,)), ((*BLOCKS, 9), 18, (3,)))
    (second,) = run(sharing, ((*BLOCKS, 11), 16, (8,)))
    assert first.base is second.base is owner_now.base is not None
    assert first.base.columns == first.base_columns == 16 and first.columns == 64
    assert tokens_of(first, 17) == [*PREFIX, 7] and tokens_of(second, 17) == [*PREFIX, 8]
    assert tokens_of(owner_now, 19) == [*PREFIX, 1, 2, 3]
    assert owner.owned == {}
    assert held_bytes(sharing) == held(first, second, owner_now)


def test_without_graphs_for_it_blocks_are_copied(caches: Caches) -> None:
    run(caches, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    (sharer,) = run(caches, ((*BLOCKS, 10), 16, (7,)))
    assert sharer.base is None and tokens_of(sharer, 17) == [*PREFIX, 7]


def test_a_short_run_is_copied(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    (sharer,) = run(sharing, ((3, 10), 4, (7,)))
    assert sharer.base is None and tokens_of(sharer, 5) == [*PREFIX[:4], 7]


def test_an_owner_that_is_in_the_step_already_goes_on_upon_the_base_in_the_next(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    owner, sharer = run(sharing, ((*BLOCKS, 9), 17, (2,)), ((*BLOCKS, 10), 16, (7,)))
    assert owner.base is None and sharer.base is not None
    assert tokens_of(owner, 18) == [*PREFIX, 1, 2]
    (owner_now,) = run(sharing, ((*BLOCKS, 9), 18, (3,)))
    assert owner_now.base is sharer.base and tokens_of(owner_now, 19) == [*PREFIX, 1, 2, 3]
    assert owner not in owners(sharing)


def test_what_a_finished_sequence_left_is_copied_once_and_then_shared(sharing: Caches) -> None:
    (left,) = run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1, 2, 3, 4)))
    run(sharing, ((20,), 0, (5,)))
    (first,) = run(sharing, ((*BLOCKS, 10), 16, (7,)))
    assert first.base is None
    run(sharing, ((20,), 1, (5,)))
    second, third = run(sharing, ((*BLOCKS, 11), 16, (8,)), ((*BLOCKS, 12), 16, (9,)))
    assert second.base is third.base is not None
    (fourth,) = run(sharing, ((*BLOCKS, 9, 13), 20, (6,)))  # the finished one's own block is still there, upon the base
    assert fourth.base is second.base and tokens_of(fourth, 21) == [*PREFIX, 1, 2, 3, 4, 6]
    assert left not in owners(sharing)


def test_a_shorter_run_sees_less_of_the_base(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    (whole,) = run(sharing, ((*BLOCKS, 10), 16, (7,)))
    (shorter,) = run(sharing, ((3, 1, 11), 8, (8,)))
    assert shorter.base is whole.base and shorter.base_columns == 8
    assert tokens_of(shorter, 9) == [*PREFIX[:8], 8]


def test_less_than_half_of_a_base_becomes_another(sharing: Caches) -> None:
    blocks = tuple(range(30, 36))
    run(sharing, ((*blocks, 9), 0, tuple(range(25))))
    (whole,) = run(sharing, ((*blocks, 10), 24, (7,)))
    (shorter,) = run(sharing, ((30, 31, 11), 8, (8,)))
    assert shorter.base is not whole.base and shorter.base is not None and shorter.base.columns == 8
    whole_now, again = run(sharing, ((*blocks, 10), 25, (9,)), ((*blocks, 12), 24, (6,)))
    assert whole_now is whole and again.base is whole.base
    assert tokens_of(whole, 26) == [*range(24), 7, 9]


def test_behind_a_base_the_rest_of_a_longer_run_is_copied(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    (first,) = run(sharing, ((*BLOCKS, 10, 11), 16, (7, 7, 7, 7, 2)))
    (second,) = run(sharing, ((*BLOCKS, 10, 12), 20, (8,)))
    assert second.base is first.base and second.base_columns == 16
    assert tokens_of(second, 21) == [*PREFIX, 7, 7, 7, 7, 8]
    (first_now,) = run(sharing, ((*BLOCKS, 10, 11), 21, (3,)))
    assert first_now is first


def test_a_run_that_is_twice_as_long_becomes_a_base_of_its_own(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    longer = (*BLOCKS, 10, 11, 12, 13)
    (first,) = run(sharing, ((*longer, 14), 16, tuple(range(17))))
    (second,) = run(sharing, ((*longer, 15), 32, (8,)))
    (old,) = run(sharing, ((*BLOCKS, 16), 16, (6,)))
    (first_now,) = run(sharing, ((*longer, 14), 33, (5,)))
    assert second.base is first_now.base is not None and second.base_columns == 32
    assert old.base is first.base is not second.base
    assert tokens_of(first_now, 34) == [*PREFIX, *range(17), 5]
    assert tokens_of(second, 33) == [*PREFIX, *range(16), 8]


def test_a_newcomer_that_goes_far_beyond_what_it_shares_has_a_copy(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    near, far = (run(sharing, ((*BLOCKS, last), 16, (7,)), room=room)[0] for last, room in ((10, 48), (11, 49)))
    assert near.base is not None and near.base_columns == 16
    assert far.base is None and far.columns == 64 and tokens_of(far, 17) == [*PREFIX, 7]
    (far_now,) = run(sharing, ((*BLOCKS, 11), 17, (8,)), room=49)
    assert far_now is far and tokens_of(far, 18) == [*PREFIX, 7, 8]


def test_a_sequence_that_has_become_long_for_its_base_leaves_it(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    (short,) = run(sharing, ((*BLOCKS, 10), 16, (7, 7)))
    (long,) = run(sharing, ((*BLOCKS, 10), 18, (8,)), room=70)
    assert short.base is not None and long.base is None and long.columns == 128
    assert tokens_of(long, 19) == [*PREFIX, 7, 7, 8]
    assert short not in owners(sharing) and run(sharing, ((*BLOCKS, 10), 19, (6,)), room=70) == [long]
    (other,) = run(sharing, ((*BLOCKS, 11), 16, (5,)))
    assert other.base is short.base and tokens_of(other, 17) == [*PREFIX, 5]


def test_a_long_owner_goes_on_as_it_is_when_others_share_its_beginning(sharing: Caches) -> None:
    tail = tuple(range(200, 252))
    blocks = (*BLOCKS, *range(20, 34))
    (owner,) = run(sharing, (blocks, 0, (*PREFIX, *tail)))
    (sharer,) = run(sharing, ((*BLOCKS, 10), 16, (7,)))
    assert sharer.base is not None and tokens_of(sharer, 17) == [*PREFIX, 7]
    (owner_now,) = run(sharing, (blocks, 68, (3,)))
    assert owner_now is owner and owner.base is None and tokens_of(owner, 69) == [*PREFIX, *tail, 3]
    sharing.free((*BLOCKS, 10))
    assert owners(sharing) == [owner] and tokens_of(owner, 69) == [*PREFIX, *tail, 3]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_a_base_lives_as_long_as_a_block_or_a_cache_needs_it(sharing: Caches, order: tuple[int, ...]) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    sharer, owner = run(sharing, ((*BLOCKS, 10), 16, (7,)), ((*BLOCKS, 9), 17, (2,)))
    (other,) = run(sharing, ((40,), 0, (1,)))
    groups, caches = ((9,), (10,), BLOCKS), {0: owner, 1: sharer}
    for done, index in enumerate(order, 1):
        sharing.free(groups[index])
        wanted = [caches[later] for later in order[done:] if later in caches]
        wanted += [owner.base] if owner.base and 2 in order[done:] else []
        assert held_bytes(sharing) == held(other, *wanted)
    assert owners(sharing) == [other]


def test_blocks_of_a_base_are_offloaded_and_loaded_ones_become_one(sharing: Caches) -> None:
    run(sharing, ((*BLOCKS, 9), 0, (*PREFIX, 1)))
    run(sharing, ((*BLOCKS, 10), 16, (7,)))
    keys = [bytes([block]) for block in BLOCKS]
    for block, key in zip(BLOCKS, keys, strict=True):
        sharing.offload(slice(block * SIZE, (block + 1) * SIZE), key)
    sharing.free((*BLOCKS, 9, 10))
    again = (60, 61, 62, 63)
    for block, key in zip(again, keys, strict=True):
        sharing.load(slice(block * SIZE, (block + 1) * SIZE), key)
        sharing.evict(key)
    first, second = run(sharing, ((*again, 20), 16, (5,)), ((*again, 21), 16, (6,)))
    assert second.base is not None
    assert (tokens_of(first, 17), tokens_of(second, 17)) == ([*PREFIX, 5], [*PREFIX, 6])


def test_what_a_mask_hides_is_zeros(sharing: Caches) -> None:
    (cache,) = run(sharing, ((3, 1), 0, (1, 2, 3, 4, 5)), kept=2)
    cache.keys[..., 5:, :] = -1
    cache.clean_behind(2)
    assert not cache.keys[..., 2:, :].any() and not cache.values[..., 2:, :].any()
    assert tokens_of(cache, 2) == [1, 2]
    run(sharing, ((3, 1), 2, (8, 9, 9)), kept=1)
    cache.clean_behind(3)
    assert tokens_of(cache, 6) == [1, 2, 8, 0, 0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the heap decides")
def test_what_caches_leave_behind_is_the_systems_again() -> None:
    """Also where a cache lies between others: half of 64 MB that were written are given back."""
    group, own = CacheGroup((0,), 0, 2, 64), psutil.Process()

    def written(columns: int) -> GroupColumns:
        made = GroupColumns(group, "float32", columns)
        made.clear(slice(None))
        return made

    written(16_384)  # glibc's heap keeps what is smaller than the largest that was freed
    caches = [written(2_048) for _ in range(32)]
    before = own.memory_info().rss
    del caches[::2]
    assert before - own.memory_info().rss > 24 << 20
