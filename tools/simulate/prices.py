"""What a simulated step costs, and which variants there are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from engine.bundle.stored_times import StoredTimes
from engine.bundle.variant import ShapeTable, StepShape


@dataclass(frozen=True, slots=True)
class Prices:
    """Milliseconds of every variant of `shapes`.

    kv_bytes: keys and values of one token, for copies. slot_ms: what a graph with a second cache costs more.
    """

    shapes: ShapeTable
    milliseconds: Mapping[StepShape, float]
    kv_bytes: int
    slot_ms: float = 0.0

    @property
    def tokens_per_request(self) -> int:
        """Most tokens, prompt and output, that every variant can hold: its past and the newest token."""
        return min(shape.past for shape in self.shapes.fixed) + 1

    def fitting(self, rows: int, past: int) -> StepShape:
        """The variant of fewest rows that holds `rows`, else of most rows, in the narrowest past that spans `past`."""
        able = self.shapes.candidates(past)
        return next((shape for shape in able if shape.rows >= rows), able[-1])


def fixed_table(shapes: Mapping[StepShape, float]) -> ShapeTable:
    """The variants that have a price."""
    return ShapeTable(tuple(sorted(shapes)), max(s.rows for s in shapes), max(s.past for s in shapes))


def lay_out(rows: tuple[int, ...], context: int, same_context: bool) -> tuple[StepShape, ...]:
    """Variants over one key axis of `context` KV slots.

    same_context: every one spans it (AI Hub, Genie), so that each has another past and a change re-lays the cache.
    Otherwise all have the past of the widest, and a change copies nothing.
    """
    widest = max(rows)
    return tuple(StepShape(count, context - (count if same_context else widest)) for count in sorted(set(rows)))


def parse_times(content: bytes) -> dict[StepShape, float]:
    """Times of a user's own, as the engine remembers them: every listed shape becomes a variant.

    `{"times": [[rows, past, milliseconds], ...]}`. ValueError that says what is wrong.
    """
    try:
        times = msgspec.json.decode(content, type=StoredTimes).of_shapes()
    except msgspec.MsgspecError as error:
        raise ValueError(f"it does not hold times as lists of [rows, past, milliseconds]: {error}") from None
    for shape, milliseconds in times.items():
        if shape.rows < 1 or shape.past < 1 or not 0 < milliseconds < math.inf:
            raise ValueError(f"[{shape.rows}, {shape.past}, {milliseconds}] must hold three numbers above 0")
    if max((shape.rows for shape in times), default=0) < 2:
        raise ValueError("it lists no variant of 2 rows or more")
    return times
