"""What the host adds to a step, by the useful rows of the step."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class HostTimes:
    """points: (useful rows, milliseconds), rows ascending; linear between them, flat outside. source: in words."""

    points: tuple[tuple[float, float], ...]
    source: str

    @classmethod
    def constant(cls, milliseconds: float) -> "HostTimes":
        """The same for every step."""
        return cls(((1.0, milliseconds),), f"{milliseconds:g} ms, as given")

    def milliseconds(self, rows: float) -> float:
        """Of a step with so many useful rows."""
        counts, times = zip(*self.points, strict=True)
        return float(np.interp(rows, counts, times))

    def text(self) -> str:
        """The points in words."""
        return ", ".join(f"{milliseconds:.1f} ms at {rows:g} rows" for rows, milliseconds in self.points)


# Of greedy requests over HTTP with buffers of Llama-3.2-3B's sizes and a runtime that sleeps for a step's time, on two
# x86-64 cores that nobody else used.
MEASURED = HostTimes(((1.0, 1.7), (16.0, 6.5)), "measured on two x86-64 cores with greedy requests")
