"""Golden layouts: right-aligned rows, block-diagonal masks, blocks in any order."""

from dataclasses import replace

import numpy as np
import pytest

from engine.bundle.variant import StepShape
from engine.core.plan import Segment, StepPlan
from engine.runtime.interface import pack
from tests.engine.fake_runtime import visible
from tests.engine.worker.simulation import sequence_of


def segment(name: str, tokens: tuple[int, ...], position: int, blocks: tuple[int, ...], **kwargs: object) -> Segment:
    past = int(kwargs.pop("past", position))  # type: ignore[call-overload]
    return Segment(sequence_of(name), tokens, position, blocks, past, tuple(range(len(tokens))), 1, **kwargs)  # type: ignore[arg-type]


def test_prefill_right_aligned_before_decodes() -> None:
    plan = StepPlan(StepShape(8, 64), (segment("p", (5, 6, 7), 0, ()), segment("d", (9,), 20, (2, 0))))
    batch = pack(plan, 16)
    assert batch.input_ids.tolist() == [0, 0, 0, 0, 5, 6, 7, 9]
    assert batch.positions.tolist() == [0, 0, 0, 0, 0, 1, 2, 20]
    assert batch.starts == (4, 7)
    assert batch.logit_rows.tolist() == [6, 7]


def test_mask_is_own_columns_and_own_earlier_rows() -> None:
    plan = StepPlan(StepShape(4, 64), (segment("p", (5, 6), 16, (3,)), segment("d", (9,), 20, (2, 0))))
    shown = visible(pack(plan, 16))
    expected = np.zeros((4, 68), bool)
    expected[0, 64] = True  # padding sees itself
    expected[1, 48:64] = expected[2, 48:64] = True
    expected[1, 65] = expected[2, 65] = expected[2, 66] = True
    expected[3, 32:48] = expected[3, 0:4] = expected[3, 67] = True  # block 2 whole, then 4 columns of block 0
    assert (shown == expected).all()


@pytest.mark.parametrize(
    ("prefill", "decode"), [((40, 3), None), (None, 20), ((40, 3), 20)], ids=["prefill", "decode", "both"]
)
def test_mask_and_positions_say_what_is_active_and_how_long_it_is(
    prefill: tuple[int, int] | None, decode: int | None
) -> None:
    """Per row: what it sees of the cache and of this step, and where it stands. No other input tells of lengths."""
    segments, expected = [], []
    if prefill is not None:
        start, count = prefill
        segments.append(segment("p", (5, 6, 7)[:count], start, (1, 2, 3)))
        expected += [(start, row + 1, start + row) for row in range(count)]
    if decode is not None:
        segments.append(segment("d", (9,), decode, (5, 0)))
        expected.append((decode, 1, decode))
    batch = pack(StepPlan(StepShape(8, 96), tuple(segments)), 16)
    seen = zip(visible(batch)[:, :96].sum(axis=1), visible(batch)[:, 96:].sum(axis=1), batch.positions, strict=True)
    idle = [(0, 1, 0)] * (8 - len(expected))  # such a row sees itself alone
    assert [tuple(map(int, row)) for row in seen] == idle + expected
    ends = [7] if len(segments) == 1 else [6, 7]
    assert batch.logit_rows.tolist() == ends


def test_adjacent_blocks_are_one_run() -> None:
    plan = StepPlan(StepShape(1, 64), (segment("d", (9,), 40, (0, 1, 2)),))
    shown = visible(pack(plan, 16))[0]
    assert shown[:40].all() and not shown[40:64].any() and shown[64]


def test_a_block_that_sees_both_ways_sees_its_later_rows() -> None:
    plan = StepPlan(StepShape(4, 64), (segment("d", (9,), 20, (2, 0)), segment("b", (5, 6, 7), 16, (3,))))
    batch = pack(plan, 16)
    first, block = batch.segments
    shown = visible(replace(batch, segments=(first, replace(block, block_rows=3))))
    assert shown[:, 64:].astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert (shown[:, :64] == visible(batch)[:, :64]).all()


@pytest.mark.parametrize("context", [96, 100])
def test_single_rows_over_scattered_blocks_see_what_their_blocks_hold_of_them(context: int) -> None:
    source = np.random.default_rng(7)
    blocks = [tuple(map(int, part)) for part in np.split(source.permutation(5), [2, 3])]
    pasts = (32, 3, 17)
    segments = tuple(segment(name, (9,), past, held) for name, past, held in zip("abc", pasts, blocks, strict=True))
    shown = visible(pack(StepPlan(StepShape(4, context - 4), segments), 16))
    expected = np.zeros((4, context), bool)
    expected[np.arange(4), context - 4 + np.arange(4)] = True
    for row, (held, past) in enumerate(zip(blocks, pasts, strict=True), 1):
        expected[row, [block * 16 + place for block in held for place in range(16)][:past]] = True
    assert (shown == expected).all()


def test_rows_with_slots_of_their_own_may_be_written_early() -> None:
    """Guesses and what a grammar may refuse too: nothing sees their slots before they are kept."""
    plan = StepPlan(
        StepShape(16, 64),
        tuple(
            Segment(sequence_of(name), (7,) * rows, 0, (), 0, tuple(range(first, first + rows)), sampled)
            for name, rows, sampled, first in (("prompt", 4, 0, 32), ("guessing", 3, 3, 8), ("plain", 1, 1, 50))
        ),
    )
    rows, slots = pack(plan, 16).early_rows()
    assert rows.tolist() == [8, 9, 10, 11, 12, 13, 14, 15]
    assert slots.tolist() == [32, 33, 34, 35, 8, 9, 10, 50]
