"""Masks of several sequences in one step, against the definition."""

import numpy as np
import pytest

from engine.bundle.variant import StepShape
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.mask import hide_behind, paint

BLOCK = 4
SHAPE = StepShape(8, 24)
# (first row, rows, past, blocks): a prompt that goes on, and a decode whose blocks lie in another order.
PLACES = ((2, 5, 6, (4, 1)), (7, 1, 9, (0, 5, 2)))


@pytest.mark.parametrize("window", [1, 3, 7, 100])
@pytest.mark.parametrize("whole", [1, 5])
def test_rows_see_the_last_columns_of_their_own_sequence(window: int, whole: int) -> None:
    """whole: rows of the prompt that see each other both ways, as those of an image do; a window hides none ahead."""
    segments = tuple(segment(*place, whole if place[1] > 1 else 1) for place in PLACES)
    positions = np.zeros(SHAPE.rows, np.int32)
    for each in segments:
        positions[each.start : each.end] = each.past + np.arange(each.count)
    ids = np.zeros(SHAPE.rows, np.int32)
    batch = PackedBatch(SHAPE, ids, positions, np.zeros(0, np.int64), segments, BLOCK)
    mask = np.zeros((SHAPE.rows, SHAPE.context), np.bool_)
    paint(batch, mask, np.array([False, True]))
    hide_behind(batch, mask, np.False_, window)
    expected = np.zeros_like(mask)
    expected[[0, 1], [SHAPE.past, SHAPE.past + 1]] = True  # padding sees itself
    for each in segments:
        for row in range(each.start, each.end):
            last = each.past + each.count if each.block_rows > 1 else positions[row] + 1
            for token in range(max(0, positions[row] - window + 1), last):
                fresh = token - each.past
                cached = each.blocks[token // BLOCK] * BLOCK + token % BLOCK if fresh < 0 else 0
                expected[row, cached if fresh < 0 else SHAPE.past + each.start + fresh] = True
    assert (mask == expected).all()


def segment(start: int, count: int, past: int, blocks: tuple[int, ...], whole: int) -> PackedSegment:
    return PackedSegment(start=start, count=count, past=past, blocks=blocks, room=0, block_rows=whole)
