"""Step times of a user's own, as the engine remembers them: `{"times": [[rows, past, milliseconds], ...]}`."""

import math

import msgspec

from engine.bundle.stored_times import StoredTimes
from engine.bundle.variant import StepShape


def parse_times(content: bytes) -> dict[StepShape, float]:
    """Every listed shape becomes a variant. ValueError that says what is wrong."""
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
