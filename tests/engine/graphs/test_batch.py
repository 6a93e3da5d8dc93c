"""Golden layouts: right-aligned rows, block-diagonal masks, pages in any order."""

from dataclasses import replace

import numpy as np
import pytest

from engine.bundle.variant import PassShape
from engine.graphs.batch import pack
from engine.scheduling.plan import Segment, StepPlan
from tests.engine.worker.simulation import sequence_of


def segment(name: str, tokens: tuple[int, ...], position: int, pages: tuple[int, ...], **kwargs: object) -> Segment:
    past = int(kwargs.pop("past", position))  # type: ignore[call-overload]
    return Segment(sequence_of(name), tokens, position, pages, past, tuple(range(len(tokens))), 1, **kwargs)  # type: ignore[arg-type]


def test_prefill_right_aligned_before_decodes() -> None:
    plan = StepPlan(PassShape(8, 64), 0, (segment("p", (5, 6, 7), 0, ()), segment("d", (9,), 20, (2, 0))))
    batch = pack(plan, 16)
    assert batch.input_ids.tolist() == [0, 0, 0, 0, 5, 6, 7, 9]
    assert batch.positions.tolist() == [0, 0, 0, 0, 0, 1, 2, 20]
    assert batch.starts == (4, 7)
    assert batch.logit_rows.tolist() == [6, 7]


def test_mask_is_own_columns_and_own_earlier_rows() -> None:
    plan = StepPlan(PassShape(4, 64), 0, (segment("p", (5, 6), 16, (3,)), segment("d", (9,), 20, (2, 0))))
    visible = pack(plan, 16).visible()
    expected = np.zeros((4, 68), bool)
    expected[0, 64] = True  # padding sees itself
    expected[1, 48:64] = expected[2, 48:64] = True
    expected[1, 65] = expected[2, 65] = expected[2, 66] = True
    expected[3, 32:48] = expected[3, 0:4] = expected[3, 67] = True  # page 2 whole, then 4 columns of page 0
    assert (visible == expected).all()


@pytest.mark.parametrize(
    ("prefill", "decode"), [((40, 3), None), (None, 20), ((40, 3), 20)], ids=["prefill", "decode", "both"]
)
def test_mask_and_positions_say_what_is_active_and_how_long_it_is(
    prefill: tuple[int, int] | None, decode: int | None
) -> None:
    """Per row: what it sees of the cache and of this pass, and where it stands. No other input tells of lengths."""
    segments, expected = [], []
    if prefill is not None:
        start, count = prefill
        segments.append(segment("p", (5, 6, 7)[:count], start, (1, 2, 3)))
        expected += [(start, row + 1, start + row) for row in range(count)]
    if decode is not None:
        segments.append(segment("d", (9,), decode, (5, 0)))
        expected.append((decode, 1, decode))
    batch = pack(StepPlan(PassShape(8, 96), 0, tuple(segments)), 16)
    seen = zip(batch.visible()[:, :96].sum(axis=1), batch.visible()[:, 96:].sum(axis=1), batch.positions, strict=True)
    idle = [(0, 1, 0)] * (8 - len(expected))  # such a row sees itself alone
    assert [tuple(map(int, row)) for row in seen] == idle + expected
    ends = [7] if len(segments) == 1 else [6, 7]
    assert batch.logit_rows.tolist() == ends


def test_adjacent_pages_are_one_run() -> None:
    plan = StepPlan(PassShape(1, 64), 0, (segment("d", (9,), 40, (0, 1, 2)),))
    visible = pack(plan, 16).visible()[0]
    assert visible[:40].all() and not visible[40:64].any() and visible[64]


def test_a_block_that_sees_both_ways_sees_its_later_rows() -> None:
    plan = StepPlan(PassShape(4, 64), 0, (segment("d", (9,), 20, (2, 0)), segment("b", (5, 6, 7), 16, (3,))))
    batch = pack(plan, 16)
    first, block = batch.segments
    visible = replace(batch, segments=(first, replace(block, block_rows=3))).visible()
    assert visible[:, 64:].astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert (visible[:, :64] == batch.visible()[:, :64]).all()


@pytest.mark.parametrize("context", [96, 100])
def test_single_rows_over_scattered_pages_see_what_their_pages_hold_of_them(context: int) -> None:
    source = np.random.default_rng(7)
    pages = [tuple(map(int, part)) for part in np.split(source.permutation(5), [2, 3])]
    pasts = (32, 3, 17)
    segments = tuple(segment(name, (9,), past, held) for name, past, held in zip("abc", pasts, pages, strict=True))
    visible = pack(StepPlan(PassShape(4, context - 4), 0, segments), 16).visible()
    expected = np.zeros((4, context), bool)
    expected[np.arange(4), context - 4 + np.arange(4)] = True
    for row, (held, past) in enumerate(zip(pages, pasts, strict=True), 1):
        expected[row, [page * 16 + place for page in held for place in range(16)][:past]] = True
    assert (visible == expected).all()
