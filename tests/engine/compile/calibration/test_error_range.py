"""Ranges by expected error, against the definition: texts drawn from the distribution that the formula assumes."""

import numpy as np
import pytest

from engine.compile.calibration.encodings import (
    SHARES,
    STEPS,
    Observed,
    Range,
    clipping_error,
    error_range,
    extreme_range,
    rounding_error,
)


def test_clipping_costs_what_it_costs_texts_that_were_not_seen() -> None:
    """The mean squared excess of exponentially distributed largest values, by drawing a million texts."""
    least, excess = 3.0, 0.4
    tops = np.array([least, least + excess, least + 2 * excess])  # their mean lies `excess` above the least
    drawn = least + np.random.default_rng(0).exponential(excess, 1_000_000)
    ends = np.array([3.0, 3.3, 4.0, 5.0])
    expected = [np.square(np.maximum(drawn - end, 0.0)).mean() for end in ends]
    np.testing.assert_allclose(clipping_error(tops, ends), expected, rtol=0.1)


def test_rounding_costs_what_rounding_costs() -> None:
    values = np.random.default_rng(1).uniform(-2, 3, 100_000)
    step = 5 / STEPS
    lost = np.square(np.rint(values / step) * step - values).sum()
    assert rounding_error(np.array([5.0]), len(values))[0] == pytest.approx(lost, rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_ends_of_the_grid_have_less_error(seed: int) -> None:
    generator = np.random.default_rng(seed)
    texts = tuple(Range(float(-low), float(high)) for low, high in generator.gamma(3.0, 1.0, (8, 2)))
    seen = Observed(texts, 4096)
    found = error_range(seen)
    highs, lows = np.array([text.high for text in texts]), np.array([-text.low for text in texts])

    def error(high: float, low: float) -> float:
        beyond = sum(
            2 * (tops.mean() - tops.min()) ** 2 * np.exp(-(end - tops.min()) / (tops.mean() - tops.min()))
            for tops, end in ((highs, high), (lows, low))
        )
        return float(beyond + seen.values * ((high + low) / STEPS) ** 2 / 12)

    least = min(error(high * highs.max(), low * lows.max()) for high in SHARES for low in SHARES)
    assert error(found.high, -found.low) == pytest.approx(least, rel=1e-9)


def test_more_room_where_texts_differ_more() -> None:
    alike = Observed(tuple(Range(-1.0, 9.9 + 0.01 * index) for index in range(11)), 1 << 16)
    apart = Observed(tuple(Range(-1.0, 5.0 + 0.5 * index) for index in range(11)), 1 << 16)
    assert alike.extremes == apart.extremes == Range(-1.0, 10.0)
    assert 10.0 < error_range(alike).high < 11.5 < error_range(apart).high <= 25.0
    assert error_range(alike).low == -1.0  # the same in every text


def test_what_has_one_sign_keeps_it() -> None:
    texts = tuple(Range(1.0 + index, 5.0 + index) for index in range(6))
    assert error_range(Observed(texts, 100)).low == 0.0


def test_few_texts_have_their_extremes() -> None:
    seen = Observed((Range(-1.0, 2.0), Range(-3.0, 1.0)), 100)
    assert error_range(seen) == extreme_range(seen) == Range(-3.0 * 1.1, 2.0 * 1.1)
