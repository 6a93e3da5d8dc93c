"""The rule of fused graphs: a pass has one prompt at most, and every sequence holds a whole cache."""

from collections.abc import Iterable

from engine.bundle.variant import PassShape
from engine.scheduling.sequence import Sequence

LOGPROB_ROWS = 1  # a fused graph gives logits of a prompt's last row only


def first_open(prefills: Iterable[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
    """Of the prompts and the rows each may take, the first that may take any."""
    return [(sequence, rows) for sequence, rows in prefills if rows > 0][:1]


def slot_rows(shape: PassShape, slots: int, decodes: int, prefill_rows: int) -> tuple[int, int]:
    """How many decodes and prefill rows a pass serves: neither takes rows of the other."""
    decode_rows = min(shape.rows, slots)
    return min(decodes, decode_rows), min(prefill_rows, shape.rows - decode_rows)
