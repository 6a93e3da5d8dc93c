"""Lengths, cuts and scores, by hand."""

import math

import numpy as np
import pytest

from engine.bundle.specs import PoolingKind, PoolingSpec, RerankKind, RerankSpec
from engine.client.pooling import finished, score


def raw(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def test_a_vector_has_length_one_and_so_has_its_beginning() -> None:
    spec = PoolingSpec(PoolingKind.LAST, 3)
    assert finished(raw(3, 4, 0), spec).tolist() == pytest.approx([0.6, 0.8, 0])
    assert finished(raw(3, 4, 12), spec, 2).tolist() == pytest.approx([0.6, 0.8])
    assert finished(raw(0, 0, 0), spec).tolist() == [0, 0, 0]


def test_a_model_that_does_not_normalise_does_so_only_for_a_cut() -> None:
    spec = PoolingSpec(PoolingKind.LAST, 3, normalise=False)
    assert finished(raw(3, 4, 0), spec).tolist() == [3, 4, 0]
    assert finished(raw(3, 4, 12), spec, 3).tolist() == [3, 4, 12]
    assert finished(raw(3, 4, 12), spec, 2).tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize(("yes", "no"), [(2.0, 1.0), (-1.0, 3.0), (0.0, 0.0)])
def test_a_judgement_is_the_softmax_of_both(yes: float, no: float) -> None:
    found = score(raw(yes, no), RerankSpec(RerankKind.JUDGE))
    assert found == pytest.approx(math.exp(yes) / (math.exp(yes) + math.exp(no)))


def test_scores_of_extreme_numbers_are_still_between_0_and_1() -> None:
    spec = RerankSpec(RerankKind.JUDGE)
    assert score(raw(1e5, -1e5), spec) == 1 and score(raw(-1e5, 1e5), spec) == 0
    assert score(raw(0.5), RerankSpec(RerankKind.PAIR)) == pytest.approx(1 / (1 + math.exp(-0.5)))
