"""Percentiles and ratios of measured values. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of `count` values in one unit; all zero when there are none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    highest: float = 0.0


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Percentile of ascending values, linear between neighbours (numpy's default, Hyndman and Fan 1996, type 7).

    Raises ValueError without values or with `percent` outside 0 to 100.
    """
    if not ordered or not 0 <= percent <= 100:
        raise ValueError(f"no percentile {percent} of {len(ordered)} values")
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def distribution(values: Sequence[float]) -> Distribution:
    """Summary of values in any order."""
    if not values:
        return Distribution()
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, percent) for percent in (50, 90, 95, 99))
    return Distribution(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p95, p99, ordered[-1])


def median(values: Sequence[float]) -> float | None:
    """The middle value, None without values."""
    return percentile(sorted(values), 50) if values else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole`, None when either is unknown or `whole` is not positive."""
    return part / whole if part is not None and whole is not None and whole > 0 else None
