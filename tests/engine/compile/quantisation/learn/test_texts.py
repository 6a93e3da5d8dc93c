"""Texts side by side: each once, alike in length, padded behind their end."""

from itertools import islice

import pytest
import torch

from engine.compile.quantisation.learn.descent import batches, endless, parted
from engine.errors import CompileError


def test_every_text_is_in_one_batch_of_bounded_size() -> None:
    lengths = [5, 1, 9, 30, 4, 9, 2]
    found = batches(lengths, range(len(lengths)), 20)
    assert sorted(index for batch in found for index in batch.indices) == list(range(len(lengths)))
    assert all(batch.real.numel() <= 20 for batch in found if len(batch.indices) > 1)
    assert [batch.real.sum(dim=1).tolist() for batch in found] == [[lengths[i] for i in b.indices] for b in found]


def test_padding_stands_behind_the_text() -> None:
    (batch,) = batches([3, 2], [1, 0], 100)
    texts = [torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[4.0], [5.0]])]
    assert batch.indices == (1, 0)
    assert batch.of(texts)[:, :, 0].tolist() == [[4.0, 5.0, 0.0], [1.0, 2.0, 3.0]]
    assert batch.real.tolist() == [[True, True, False], [True, True, True]]


@pytest.mark.parametrize("count", [2, 3, 8, 9, 17, 50])
def test_some_texts_are_held_back_and_none_is_on_both_sides(count: int) -> None:
    taught, held_back = parted(count)
    assert sorted([*taught, *held_back]) == list(range(count))
    assert taught
    assert 1 <= len(held_back) <= max(1, -(-count // 8))


def test_one_text_cannot_judge_itself() -> None:
    with pytest.raises(CompileError, match="longer --calibration"):
        parted(1)


def test_each_round_has_every_batch_in_an_order_of_its_own() -> None:
    given = batches([1] * 40, range(40), 1)
    first, second = ([batch.indices for batch in islice(endless(given, 3), start, start + 40)] for start in (0, 40))
    assert sorted(first) == sorted(second) == sorted(batch.indices for batch in given)
    assert first != second
