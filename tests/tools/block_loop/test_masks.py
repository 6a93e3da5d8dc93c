"""What the host computes for a step of an exported graph."""

import numpy as np
import pytest

from tools.block_loop import (
    HIDDEN,
    attention_mask,
    block_positions,
    for_layers,
    insert_matrix,
    keep_mask,
)

X = float(HIDDEN)


def test_positions_mark_the_active_region() -> None:
    assert block_positions([0, 6], 3).tolist() == [[0, 1, 2], [6, 7, 8]]


def test_a_block_sees_all_committed_columns_and_all_of_itself() -> None:
    mask = attention_mask([2], 2, 5)
    assert mask.shape == (1, 1, 1, 2, 7)
    assert mask[0, 0, 0].tolist() == [[0, 0, X, X, X, 0, 0]] * 2


def test_the_sequence_is_prompt_frozen_blocks_active_block_and_masked_future() -> None:
    """Blocks of 2, a cache of 8: prompt 0-1, frozen block 2-3, active block 4-5 (in the fresh columns), future 6-7."""
    prompt, frozen, future, fresh = [0, 0], [0, 0], [X, X, X, X], [0, 0]
    assert attention_mask([4], 2, 8)[0, 0, 0].tolist() == [prompt + frozen + future + fresh] * 2


def test_no_row_sees_the_padding_of_a_block() -> None:
    mask = attention_mask([1, 0], 3, 2, lengths=[2, 3])
    assert mask[0, :, 0].tolist() == [[[0, X, 0, 0, X]] * 3, [[X, X, 0, 0, 0]] * 3]


def test_an_empty_cache_shows_the_block_alone() -> None:
    assert attention_mask([0], 2, 3)[0, 0, 0].tolist() == [[X, X, X, 0, 0]] * 2


def test_the_insert_matrix_maps_the_block_onto_its_columns() -> None:
    matrix = insert_matrix([1, None], 2, 4)
    assert matrix.shape == (1, 2, 1, 4, 2)
    assert matrix[0, 0, 0].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0]]
    assert not matrix[0, 1].any()


def test_the_keep_mask_clears_the_columns_that_are_overwritten() -> None:
    mask = keep_mask([1, None], 2, 4)
    assert mask.shape == (1, 2, 1, 4, 1)
    assert mask[0, :, 0, :, 0].tolist() == [[1, 0, 0, 1], [1, 1, 1, 1]]


def test_masks_for_every_layer_are_equal() -> None:
    mask = keep_mask([1], 2, 4)
    spread = for_layers(mask, 3)
    assert spread.shape == (3, 1, 1, 4, 1)
    assert (spread == mask).all()


@pytest.mark.parametrize("start", [-1, 3])
@pytest.mark.parametrize("make", [insert_matrix, keep_mask])
def test_a_block_outside_the_cache_is_refused(make: object, start: int) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="outside a cache of 4 KV slots"):
        make([start], 2, 4)


def test_hidden_columns_have_no_weight() -> None:
    assert np.exp(HIDDEN) == 0
    assert np.exp(np.float16(HIDDEN)) == 0
