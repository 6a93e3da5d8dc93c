"""Rows in an order that keeps decodes where they are."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.bundle.variant import StepShape
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.segmented import ArrangedBatch, RowPlaces


class Owner:
    """A sequence."""


def batch_of(counts: list[int], padding: int = 0) -> PackedBatch:
    """Segments of so many rows; a row's id is its number, its position ten times that; all give logits."""
    rows, segments = padding, []
    for index, count in enumerate(counts):
        segments.append(PackedSegment(rows, count, (index,), 0, count))
        rows += count
    numbers = np.arange(rows, dtype=np.int32)
    return PackedBatch(StepShape(rows, 0), numbers, 10 * numbers, np.arange(padding, rows), tuple(segments), 16)


def starts(found: ArrangedBatch) -> list[int]:
    return [segment.start for segment in found[0].segments]


def test_prompts_come_first_and_decodes_keep_their_place_from_the_end() -> None:
    places, (a, b, c) = RowPlaces(), (Owner(), Owner(), Owner())
    assert starts(places.arrange(batch_of([1, 1]), [a, b])) == [1, 0]
    assert starts(places.arrange(batch_of([1, 4, 1]), [b, c, a])) == [4, 0, 5]
    assert starts(places.arrange(batch_of([1, 1, 1]), [c, b, a])) == [0, 1, 2]


def test_a_gap_is_filled_by_one_and_nobody_else_moves() -> None:
    places, owners = RowPlaces(), [Owner() for _ in range(5)]
    first = starts(places.arrange(batch_of([1] * 5), owners))
    without = [*owners[:1], *owners[2:]]
    second = starts(places.arrange(batch_of([1] * 4), without))
    from_end = {id(owner): 5 - start for owner, start in zip(owners, first, strict=True)}
    moved = [owner for owner, start in zip(without, second, strict=True) if from_end[id(owner)] != 4 - start]
    assert moved == [owners[4]]
    newcomer = Owner()
    third = places.arrange(batch_of([1] * 5), [newcomer, *without])
    assert [5 - start for start in starts(third)[1:]] == [4 - start for start in second]


@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), unique_by=lambda item: item[0]), max_size=6))
def test_the_step_is_the_same_step(steps: list[list[tuple[int, int]]]) -> None:
    """Every row has its own place, padding stays in front, and ids, positions and logit rows go with their rows."""
    places, owners = RowPlaces(), [Owner() for _ in range(7)]
    for items in steps:
        batch = batch_of([count for _, count in items], padding=2)
        moved, row_of = places.arrange(batch, [owners[index] for index, _ in items])
        assert sorted(row_of.tolist()) == list(range(batch.shape.rows))
        assert row_of[:2].tolist() == [0, 1]
        assert (moved.input_ids[row_of] == batch.input_ids).all()
        assert (moved.positions[row_of] == batch.positions).all()
        assert (moved.logit_rows == row_of[batch.logit_rows]).all()
        for before, after in zip(batch.segments, moved.segments, strict=True):
            assert (row_of[before.start : before.end] == np.arange(after.start, after.end)).all()
