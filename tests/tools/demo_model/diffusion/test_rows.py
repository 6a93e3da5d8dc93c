"""What the block-diffusion model is trained on: which tokens are masked, what they should say, what a row sees."""

from random import Random

import torch

from tools.demo_model.diffusion.rows import CLEAN, COPIES, PADDING, Row, batch_of, training_rows, visibility

MASK = 99


def rows_of(tokens: list[int], learned: str, seed: int = 0) -> list[Row]:
    """learned: 'x' for every token that is learned."""
    return training_rows(Random(seed), tokens, [mark == "x" for mark in learned], MASK)


def copy_of(rows: list[Row], copy: int) -> list[Row]:
    return [row for row in rows if row.copy == copy]


def test_clean_tokens_reach_to_the_last_block_that_is_learned() -> None:
    clean = copy_of(rows_of(list(range(10, 22)), "......xx...."), CLEAN)
    assert [(row.token, row.position) for row in clean] == [(10 + place, place) for place in range(4)]
    assert all(row.target is None for row in clean)


def test_only_blocks_with_learned_tokens_are_denoised() -> None:
    noisy = copy_of(rows_of(list(range(10, 22)), "......xx...."), 1)
    assert [row.position for row in noisy] == [4, 5, 6, 7]


def test_the_first_copy_masks_everything_that_is_learned() -> None:
    noisy = copy_of(rows_of([10, 11, 12, 13], ".xxx"), 1)
    assert [row.token for row in noisy] == [10, MASK, MASK, MASK]
    assert [row.target for row in noisy] == [None, 11, 12, 13]


def test_other_copies_mask_one_token_at_least_and_show_the_rest() -> None:
    counts = set()
    for seed in range(60):
        for copy in range(2, COPIES + 1):
            noisy = copy_of(rows_of([10, 11, 12, 13], "xxxx", seed), copy)
            assert all((row.token == MASK) == (row.target is not None) for row in noisy)
            assert [row.target or row.token for row in noisy] == [10, 11, 12, 13]
            counts.add(sum(row.token == MASK for row in noisy))
    assert counts == {1, 2, 3, 4}


def test_nothing_that_follows_an_answer_is_shown_while_it_is_written() -> None:
    """Behind the end of an answer the block is filled with the end of text, whatever the conversation goes on with."""
    noisy = copy_of(rows_of([10, 11, 2, 50, 51, 52], "xxx..."), 1)
    assert [row.token for row in noisy] == [MASK] * 4
    assert [row.target for row in noisy] == [10, 11, 2, 0]


def test_an_answer_that_ends_the_sample_is_filled_as_well() -> None:
    noisy = copy_of(rows_of([10, 11, 12, 13, 14], ".xxxx"), 1)
    assert [row.target for row in noisy[4:]] == [14, 0, 0, 0]


def test_what_a_row_sees() -> None:
    """Clean blocks 0 and 1 of two tokens each (positions 0, 3, 4, 7), block 1 noisy in two copies, one padding."""
    positions = torch.tensor([[0, 3, 4, 7, 4, 7, 4, 7, 0]])
    copies = torch.tensor([[CLEAN, CLEAN, CLEAN, CLEAN, 1, 1, 2, 2, PADDING]])
    seen = visibility(positions, copies)[0, 0].int().tolist()
    assert seen[0] == seen[1] == [1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert seen[2] == seen[3] == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert seen[4] == seen[5] == [1, 1, 0, 0, 1, 1, 0, 0, 0]
    assert seen[6] == seen[7] == [1, 1, 0, 0, 0, 0, 1, 1, 0]
    assert seen[8] == [0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_a_batch_names_its_masked_rows_and_their_targets() -> None:
    samples = [rows_of([10, 11, 12, 13], ".xxx"), rows_of(list(range(20, 28)), "xxxxxxxx")]
    batch = batch_of(samples)
    assert batch.tokens.shape == (2, max(map(len, samples)))
    assert (batch.tokens.flatten()[batch.chosen] == MASK).all()
    assert len(batch.targets) == sum(row.target is not None for rows in samples for row in rows)
    assert batch.visible is not None and batch.visible.any(-1).all()
