"""What a pass costs: milliseconds by shape, measured at start-up and interpolated in between."""

from bisect import bisect_left
from collections.abc import Mapping

from engine.bundle.variant import PassShape


class CostTable:
    """Cost of any shape from measured ones.

    Piecewise linear in rows, then in past; flat outside the measured range below, linear beyond it above.
    An empty table says every pass costs 1 ms plus nothing: then the most useful rows win.
    """

    def __init__(self, measured: Mapping[PassShape, float], column_ms: float = 0.0) -> None:
        self._column_ms = column_ms  # to re-lay one column of a pool
        self._by_past: dict[int, list[tuple[int, float]]] = {}
        for shape, milliseconds in sorted(measured.items()):
            self._by_past.setdefault(shape.past, []).append((shape.rows, milliseconds))
        self._exact = dict(measured)

    def milliseconds(self, shape: PassShape) -> float:
        """Expected time of one pass."""
        if shape in self._exact:
            return self._exact[shape]
        if not self._by_past:
            return 1.0
        points = [(past, _interpolate(line, shape.rows)) for past, line in sorted(self._by_past.items())]
        return _interpolate(points, shape.past)

    def switch_ms(self, width: int, shape: PassShape) -> float:
        """What it costs to re-lay a pool of `width` columns for `shape`; nothing when it is as it should be."""
        return 0.0 if shape.past == width else self._column_ms * min(width, shape.past)


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
