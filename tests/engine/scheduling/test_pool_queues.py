"""A prefix of which some pages are in the pool and others on the shelf; pages that are promised."""

from engine.bundle.variant import ShapeTable
from engine.cache.host_cache import Shelf
from engine.cache.pages import PagePool
from engine.request import Request, SamplingParams
from engine.scheduling.plan import MoveKind, PageMove
from engine.scheduling.pool_queues import Lane
from engine.scheduling.sequence import Sequence, Status

KEYS = [bytes([number]) * 16 for number in range(6)]


def lane_of(pages: int, shelf: Shelf) -> tuple[Lane, list[PageMove]]:
    moves: list[PageMove] = []
    return Lane(0, PagePool(16 * pages, 16), ShapeTable((), 16, 16 * pages), shelf, moves), moves


def keep(lane: Lane, *keys: bytes) -> tuple[int, ...]:
    """Pages that hold what the keys say, and nobody uses."""
    pages = lane.pages.allocate(len(keys))
    assert pages is not None
    for page, key in zip(pages, keys, strict=True):
        lane.pages.register(page, key)
    lane.pages.release(pages)
    return pages


def prefill(name: str, tokens: int) -> Sequence:
    request = Request(name, tuple(range(tokens)), SamplingParams(max_tokens=1))
    return Sequence(request, 0, 0, list(request.prompt_ids), Status.PREFILL)


def test_gaps_in_the_pool_are_filled_from_the_shelf() -> None:
    shelf = Shelf(10)
    lane, moves = lane_of(8, shelf)
    for key in (KEYS[0], KEYS[3], KEYS[4]):
        shelf.put(key)
    first, second = keep(lane, KEYS[1], KEYS[2])
    known = lane.known(KEYS)
    assert known == [None, first, second, None, None]
    lane.pages.acquire((first, second))
    pages = lane.restore(KEYS, known)
    assert pages[1:3] == [first, second] and len(set(pages)) == 5
    restored = [(move.key, move.page) for move in moves if move.kind is MoveKind.RESTORE]
    assert restored == [(KEYS[0], pages[0]), (KEYS[3], pages[3]), (KEYS[4], pages[4])]
    assert list(lane.pages.lookup(KEYS)) == pages


def test_making_room_for_copies_costs_none_of_them() -> None:
    """Two fresh pages hold something that goes to the shelf first, which holds four copies: all of both stay."""
    for size, used in ((2, 1), (3, 1), (4, 2), (5, 2)):
        shelf = Shelf(size)
        lane, moves = lane_of(3, shelf)
        shelf.put(KEYS[0])
        shelf.put(KEYS[1])
        keep(lane, *KEYS[3:])
        known = lane.known(KEYS)
        assert known == [None] * used
        assert len(lane.restore(KEYS, known)) == used
        assert [move.key for move in moves if move.kind is MoveKind.RESTORE] == KEYS[:used]
        assert not {move.key for move in moves if move.kind is MoveKind.DROP} & {*KEYS[:used]}


def test_decodes_do_not_get_what_prompts_were_promised() -> None:
    lane, _ = lane_of(4, Shelf(0))
    decoding, waiting = prefill("decoding", 17), prefill("waiting", 33)
    for sequence in (decoding, waiting):
        lane.prefill_queue[sequence.request.request_id] = sequence
    assert lane.promised == 5
    del lane.prefill_queue["decoding"]
    decoding.move(Status.DECODE)
    assert lane.grow(decoding, 1) and not lane.grow(decoding, 2)
    assert lane.grow(waiting, 3) and lane.promised == 0
    assert not lane.grow(decoding, 2) and len(decoding.pages) == 1
