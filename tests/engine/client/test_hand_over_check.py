"""How far two devices are apart, of the likeliest tokens alone."""

import math

import pytest

from engine.client.hand_over_check import top_kl


def test_equal_ones_are_not_apart() -> None:
    tops = {1: math.log(0.7), 2: math.log(0.2)}
    assert top_kl(tops, tops) == pytest.approx(0.0)


def test_it_is_the_divergence_with_all_others_as_one() -> None:
    own, other = {1: math.log(0.5), 2: math.log(0.25)}, {1: math.log(0.25), 2: math.log(0.5)}
    assert top_kl(own, other) == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))


def test_a_token_that_the_other_lacks_is_as_its_last_one() -> None:
    assert top_kl({7: math.log(0.9)}, {1: math.log(0.6), 2: math.log(1e-4)}) > 5
