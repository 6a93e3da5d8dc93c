"""What a pass costs: milliseconds by shape, measured at start-up and interpolated in between."""

from bisect import bisect_left
from collections.abc import Mapping

from engine.bundle.variant import PassShape

OBSERVED_SHARE = 0.05
COPY_BYTES_PER_MS = 4e6  # of a strided copy; only the order of magnitude matters


class CostTable:
    """Cost of any shape from measured ones.

    Piecewise linear in rows, then in past; flat outside the measured range below, linear beyond it above.
    An empty table says every pass costs 1 ms plus nothing: then the most useful rows win.
    """

    def __init__(self, measured: Mapping[PassShape, float], column_ms: float = 0.0) -> None:
        self._drift = 1.0  # observed over expected: a machine is not always as it was when it was measured
        self._column_ms = column_ms  # to re-lay one column of a pool
        self._by_past: dict[int, list[tuple[int, float]]] = {}
        for shape, milliseconds in sorted(measured.items()):
            self._by_past.setdefault(shape.past, []).append((shape.rows, milliseconds))
        self._exact = dict(measured)

    @property
    def is_measured(self) -> bool:
        """Whether the times are a machine's; without measured ones every pass is said to cost the same."""
        return bool(self._by_past)

    def milliseconds(self, shape: PassShape) -> float:
        """Expected time of one pass."""
        return self._measured(shape) * self._drift

    def observe(self, shape: PassShape, milliseconds: float) -> None:
        """Learn from a pass: the ratio of observed to expected follows slowly, within a factor of 8."""
        if self._by_past:
            ratio = min(8.0, max(0.125, milliseconds / self._measured(shape)))
            self._drift += OBSERVED_SHARE * (ratio - self._drift)

    def _measured(self, shape: PassShape) -> float:
        if shape in self._exact:
            return self._exact[shape]
        if not self._by_past:
            return 1.0
        points = [(past, _at_rows(line, shape.rows)) for past, line in sorted(self._by_past.items())]
        return _interpolate(points, shape.past)

    def switch_ms(self, width: int, shape: PassShape) -> float:
        """What it costs to re-lay a pool of `width` columns for `shape`; nothing when it is as it should be."""
        return 0.0 if shape.past == width else self._column_ms * min(width, shape.past)


def _at_rows(line: list[tuple[int, float]], rows: int) -> float:
    """Along rows. From a single point upwards cost is taken as proportional: never too cheap."""
    if len(line) == 1:
        return line[0][1] * max(1.0, rows / line[0][0])
    return _interpolate(line, rows)


def _interpolate(points: list[tuple[int, float]], at: int) -> float:
    places = [place for place, _ in points]
    right = bisect_left(places, at)
    if right < len(points) and places[right] == at:
        return points[right][1]
    if right == 0 or len(points) == 1:
        return points[0][1]
    left, right = (right - 1, right) if right < len(points) else (right - 2, right - 1)
    (x0, y0), (x1, y1) = points[left], points[right]
    return max(y0, y0 + (y1 - y0) * (at - x0) / (x1 - x0)) if at > x1 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)
