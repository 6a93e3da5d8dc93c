"""The 16-bit range with the least squared error that is to be expected of a text that calibration did not see.

Rounding: step² / 12 for each value. Clipping: the largest value of a text is taken to lie above the smallest of these
largest values, u, by an exponentially distributed amount, of which the mean excess b is the likeliest mean. Beyond r
then lies exp(-(r - u) / b) of the texts, each by b on average, so that a text loses 2 b² exp(-(r - u) / b).
"""

import numpy as np
from numpy.typing import NDArray

from engine.compile.qdq.ranges import Observed, Range, extreme_range

Float64 = NDArray[np.float64]

STEPS = 65535
LEAST_TEXTS = 4  # fewer say nothing of another text
# Ends of the range over the extreme that was seen; the largest bounds what one odd text may cost all others.
SHARES = np.linspace(1.0, 2.5, 61)


def error_range(seen: Observed) -> Range:
    """Holds all that was seen, and zero. Few texts: their extremes, as `extreme_range` has them."""
    if len(seen.texts) < LEAST_TEXTS:
        return extreme_range(seen)
    highs = np.array([max(text.high, 0.0) for text in seen.texts])
    lows = np.array([max(-text.low, 0.0) for text in seen.texts])
    high, low = SHARES * highs.max(), SHARES * lows.max()
    clipped = clipping_error(highs, high)[:, None] + clipping_error(lows, low)
    widths = high[:, None] + low
    errors = clipped + rounding_error(widths, seen.values)
    first, second = np.unravel_index(int(np.argmin(errors)), errors.shape)
    return Range(-float(low[second]), float(high[first]))


def clipping_error(tops: Float64, ends: Float64) -> Float64:
    """Expected of a text, for each of `ends` [E]. tops [texts]: the largest value of each."""
    least = float(tops.min())
    excess = float(tops.mean()) - least
    if excess == 0:  # every text reaches as far, and no candidate ends before
        return np.zeros(len(ends), np.float64)
    return np.asarray(2 * excess**2 * np.exp(-(ends - least) / excess), np.float64)


def rounding_error(widths: Float64, values: int) -> Float64:
    """Expected of a text with so many values, for each width of a range."""
    return np.asarray(values * np.square(widths / STEPS) / 12, np.float64)
