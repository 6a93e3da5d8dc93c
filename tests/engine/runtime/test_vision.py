"""Where the cells of an image lie in a run of the graph."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers.vision_utils import get_vision_window_index

from engine.runtime.vision import slots_of
from tests.vision_facts import QWEN_CELLS


@pytest.mark.parametrize("grid", [(4, 4), (1, 1), (5, 9), (3, 17)])
def test_slots_of_a_window_follow_each_other(grid: tuple[int, int]) -> None:
    """In the order of transformers, which leaves none empty."""
    native = replace(QWEN_CELLS, window=4)
    slots = slots_of(native, *grid)
    assert len(set(slots.tolist())) == len(slots)
    assert slots.max() < native.slots(*grid)
    order, ends = get_vision_window_index(torch.tensor([[1, 2 * grid[0], 2 * grid[1]]]), 2, 32, 4)
    windows = np.repeat(np.arange(len(ends) - 1), np.diff(ends.numpy()) // 4)
    assert (slots[order.numpy()] // 16 == windows).all()


def test_without_windows_cells_keep_their_order() -> None:
    assert slots_of(QWEN_CELLS, 3, 5).tolist() == list(range(15))
    assert QWEN_CELLS.slots(3, 5) == 15
