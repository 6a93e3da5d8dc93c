"""Where blocks lie in layers with a window, whatever comes and goes, and however wide the pool is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import StepFailed
from engine.runtime.window_columns import WindowColumns

MOST, BLOCK = 64, 16
WIDTHS = (40, 64, 112, 256)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 15)),
        st.tuples(st.just("forget"), st.integers(0, 15)),
        st.tuples(st.just("relay"), st.sampled_from(WIDTHS)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(st.sampled_from(WIDTHS), CHANGES)
def test_what_was_written_is_found_until_it_is_forgotten_or_beyond_the_pool(
    width: int, changes: list[tuple[str, int]]
) -> None:
    """A plain memory of which column of the pool is where, moved as the places say."""
    places, held, written = WindowColumns(width, MOST), set[int](), set[int]()
    memory = np.full(places.columns, -1)
    for what, value in changes:
        if what == "relay":
            moves, before, width = places.relay(value), memory, value
            memory = np.full(places.columns, -1)
            for old, new in moves:
                memory[new] = before[old]
            held = {block for block in held if block * BLOCK < width}
            written = {column for column in written if column < width}
        elif what == "forget":
            places.forget([value])
            held.discard(value)
            written = {column for column in written if column // BLOCK != value}
        elif value * BLOCK < width:
            slots = np.arange(value * BLOCK, min((value + 1) * BLOCK, width))
            if width > MOST and value not in held and len(held) == MOST // BLOCK:
                with pytest.raises(StepFailed, match="4 blocks fill the KV slots"):
                    places.place(slots)
                continue
            memory[places.place(slots)] = slots
            held.add(value)
            written |= set(slots.tolist())
        painted = np.arange(width + 2)[None].repeat(2, axis=0)
        mask = np.zeros((2, places.columns + 2), np.int64)
        places.gather(painted, mask, width, np.int64(-1))
        assert (mask[:, -2:] == [width, width + 1]).all() and (mask[0] == mask[1]).all()
        shown = mask[0, :-2]
        assert {int(column) // BLOCK for column in shown if column >= 0} == held
        assert set(memory[(shown >= 0) & (memory == shown)].tolist()) == written


def test_a_step_over_fewer_columns_sees_no_others() -> None:
    places = WindowColumns(256, MOST)
    places.place(np.array([3, 100]))
    mask = np.zeros((1, MOST + 1), np.int64)
    places.gather(np.arange(33)[None], mask, 32, np.int64(-1))
    assert mask[0, [3, 16, 32, 64]].tolist() == [3, -1, -1, 32]


def test_slots_of_one_block_share_its_place() -> None:
    places = WindowColumns(256, MOST)
    assert places.place(np.array([250, 33, 255, 34])).tolist() == [26, 1, 31, 2]
    assert places.place(np.zeros(0, np.int64)).tolist() == []
