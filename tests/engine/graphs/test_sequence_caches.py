"""Where keys and values of sequences lie: which cache is gone on with, what is copied, what is given back."""

import numpy as np
import pytest

from engine.bundle.variant import PassShape
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.sequence_caches import SequenceCache, SequenceCaches
from tests.engine.worker.segmented_runtime import smallest_manifest

Caches = SequenceCaches[None]
SIZE = 4
Rows = tuple[tuple[int, ...], int, tuple[int, ...]]  # pages of a sequence, its computed columns, its new tokens


@pytest.fixture
def caches() -> Caches:
    return SequenceCaches(smallest_manifest())


def run(caches: Caches, *sequences: Rows, room: int = 0, kept: int | None = None) -> list[SequenceCache[None]]:
    """One pass: each sequence writes its new tokens as keys and values, of which the first `kept` count."""
    segments, rows, columns, start = [], [], [], 0
    for pages, past, tokens in sequences:
        segments.append(
            PackedSegment(start, len(tokens), pages[: -(-past // SIZE)], past, max(room, past + len(tokens)))
        )
        for index in range(len(tokens) if kept is None else kept):
            place = past + index
            rows.append(start + index)
            columns.append(pages[place // SIZE] * SIZE + place % SIZE)
        start += len(tokens)
    zeros = np.zeros(start, np.int32)
    caches.place(PackedBatch(PassShape(start, 0), 0, zeros, zeros, zeros[:0].astype(np.int64), tuple(segments), SIZE))
    for (_, past, tokens), (_, cache) in zip(sequences, caches.last, strict=True):
        cache.keys[0, 0, 0, past : past + len(tokens), 0] = tokens
        cache.values[0, 0, 0, past : past + len(tokens), 0] = tokens
    caches.keep(0, rows, columns)
    return [cache for _, cache in caches.last]


def tokens_of(cache: SequenceCache[None], count: int) -> list[int]:
    assert (cache.keys == cache.values)[..., :count, :].all()
    return [int(token) for token in cache.keys[0, 0, 0, :count, 0]]


def test_a_sequence_goes_on_in_its_own_cache(caches: Caches) -> None:
    (first,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    (second,) = run(caches, ((3, 1), 5, (6,)))
    assert second is first
    assert tokens_of(first, 6) == [1, 2, 3, 4, 5, 6]


def test_a_shared_page_is_copied_while_its_owner_goes_on(caches: Caches) -> None:
    (owner,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    owner_again, sharer = run(caches, ((3, 1), 5, (6,)), ((3, 7), 4, (9, 9)))
    assert owner_again is owner and sharer is not owner
    assert tokens_of(sharer, 6) == [1, 2, 3, 4, 9, 9]
    assert tokens_of(owner, 6) == [1, 2, 3, 4, 5, 6]


def test_a_cache_that_ends_with_the_shared_pages_is_gone_on_with(caches: Caches) -> None:
    (first,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    caches.free(0, (1,))  # its sequence has ended; only the full page is worth keeping
    heir, second = run(caches, ((3, 8), 4, (6,)), ((3, 9), 4, (7,)))
    assert heir is first and second is not first
    assert (tokens_of(heir, 5), tokens_of(second, 5)) == ([1, 2, 3, 4, 6], [1, 2, 3, 4, 7])


def test_pages_from_two_caches_are_put_side_by_side(caches: Caches) -> None:
    run(caches, ((0, 1), 0, (1, 2, 3, 4, 5, 6, 7, 8)))
    run(caches, ((4, 5, 6), 0, tuple(range(11, 22))))
    (third,) = run(caches, ((0, 5, 6, 9), 11, (30,)))  # its own page 6 is not full: nobody else can have it
    assert tokens_of(third, 12) == [1, 2, 3, 4, 15, 16, 17, 18, 19, 20, 21, 30]


def test_what_is_not_kept_is_overwritten(caches: Caches) -> None:
    (first,) = run(caches, ((3,), 0, (1, 2, 3)), kept=2)
    (second,) = run(caches, ((3,), 2, (7,)))
    assert second is first
    assert tokens_of(first, 3) == [1, 2, 7]


def test_a_pass_of_which_nothing_is_kept_leaves_nothing(caches: Caches) -> None:
    run(caches, ((3,), 0, (1, 2)), kept=0)
    assert caches.caches() == []


def test_a_page_with_a_new_owner_leaves_its_old_cache(caches: Caches) -> None:
    (old,) = run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    run(caches, ((1,), 0, (8, 8)))
    (sharer,) = run(caches, ((3, 9), 4, (6,)))
    assert sharer is old  # page 1 is elsewhere now, so the old cache ends with page 3
    assert tokens_of(sharer, 5) == [1, 2, 3, 4, 6]


def test_memory_is_given_back_with_the_last_page(caches: Caches) -> None:
    run(caches, ((3, 1), 0, (1, 2, 3, 4, 5)))
    caches.free(0, (1,))
    assert len(caches.caches()) == 1
    caches.free(0, (3,))
    assert caches.caches() == []
    caches.free(0, (3, 77))  # what was never written is nowhere


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


def test_a_copy_in_the_host_cache_comes_back_as_another_page(caches: Caches) -> None:
    run(caches, ((3,), 0, (1, 2, 3, 4)))
    caches.offload(0, slice(12, 16), b"key")
    caches.free(0, (3,))
    caches.load(0, slice(40, 44), b"key")
    caches.evict(b"key")
    caches.evict(b"key")
    (cache,) = run(caches, ((10, 11), 4, (5,)))
    assert tokens_of(cache, 5) == [1, 2, 3, 4, 5]


def test_pools_are_apart(caches: Caches) -> None:
    run(caches, ((3,), 0, (1,)))
    caches.free(1, (3,))
    assert len(caches.caches()) == 1
