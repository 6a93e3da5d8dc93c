"""What the host adds to a pass, by the useful rows of the pass: measured with `hexserve bench --paced`."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

GREEDY = "greedy"


@dataclass(frozen=True, slots=True)
class HostTimes:
    """points: (useful rows, milliseconds), rows ascending; linear between them, flat outside. source: in words."""

    points: tuple[tuple[float, float], ...]
    source: str

    @classmethod
    def constant(cls, milliseconds: float) -> "HostTimes":
        """The same for every pass."""
        return cls(((1.0, milliseconds),), f"{milliseconds:g} ms, as given")

    def milliseconds(self, rows: float) -> float:
        """Of a pass with so many useful rows."""
        below = [point for point in self.points if point[0] <= rows]
        above = [point for point in self.points if point[0] >= rows]
        if not below or not above:
            return (self.points[0] if not below else self.points[-1])[1]
        (low, low_ms), (high, high_ms) = below[-1], above[0]
        return low_ms if high == low else low_ms + (high_ms - low_ms) * (rows - low) / (high - low)

    def text(self) -> str:
        """The points in words."""
        return ", ".join(f"{milliseconds:.1f} ms at {rows:g} rows" for rows, milliseconds in self.points)


# Greedy requests over HTTP, Llama-3.2-3B's sizes, on two x86-64 cores that nobody else used.
MEASURED = HostTimes(((1.0, 1.7), (16.0, 6.5)), "measured on two x86-64 cores with greedy requests")


class _MeasuredCase(msgspec.Struct, frozen=True):
    case: str
    rows_per_pass: float
    host_ms: float


class _HostFile(msgspec.Struct, frozen=True):
    host: Sequence[_MeasuredCase]


def parse_host_times(content: bytes, source: str) -> HostTimes:
    """The greedy cases of a file that `hexserve bench --paced --json` wrote. ValueError that says what is wrong."""
    try:
        cases = msgspec.json.decode(content, type=_HostFile).host
    except msgspec.MsgspecError as error:
        raise ValueError(f"it is not what bench --paced writes: {error}") from None
    points = sorted({case.rows_per_pass: max(0.0, case.host_ms) for case in cases if case.case == GREEDY}.items())
    if not points:
        raise ValueError("it holds no greedy case")
    return HostTimes(tuple(points), source)
