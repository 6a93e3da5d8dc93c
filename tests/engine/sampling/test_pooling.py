"""The numbers of a row that are wanted in the place of a token."""

import numpy as np
import pytest

from engine.bundle.tensors import Encoding
from engine.request import Pooling
from engine.runtime.interface import Logits
from engine.sampling.sample_step import pooled
from engine.sampling.sampler import BadLogits


def numbers(found: bytes) -> list[float]:
    return [float(number) for number in np.frombuffer(found, "<f4")]


def test_a_whole_row_or_some_of_its_numbers() -> None:
    outputs = Logits.of(np.arange(8, dtype=np.float32).reshape(2, 4))
    assert numbers(pooled(outputs, 1, Pooling())) == [4, 5, 6, 7]
    assert numbers(pooled(outputs, 0, Pooling(token_ids=(3, 1)))) == [3, 1]


def test_codes_become_real_numbers() -> None:
    outputs = Logits(np.array([[10, 12]], np.uint8), Encoding("uint8", 0.5, 10))
    assert numbers(pooled(outputs, 0, Pooling())) == [0, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_fails_where_it_is_wanted(bad: float) -> None:
    outputs = Logits.of(np.array([[1, bad]], np.float32))
    with pytest.raises(BadLogits):
        pooled(outputs, 0, Pooling())
    assert numbers(pooled(outputs, 0, Pooling(token_ids=(0,)))) == [1]
