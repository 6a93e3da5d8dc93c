"""Which rows of a fused graph the rows of a pass take, and the control input that says so. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.fused import CONTROL_HEAD, FusedShape
from engine.errors import PassFailed
from engine.graphs.batch import PackedBatch, PackedSegment

PADDING = -1


@dataclass(frozen=True, slots=True)
class Placement:
    """One pass of a graph: the prompt's rows end where the decode slots begin, decodes take the last slots.

    row_of: int64 [rows of the batch], the graph's row of each, PADDING for those that hold nothing.
    """

    shape: FusedShape
    prefill: PackedSegment | None
    decodes: tuple[PackedSegment, ...]
    row_of: NDArray[np.int64]

    @property
    def base(self) -> int:
        """The graph's first row that holds a prompt token; the end of its prompt rows when there is none."""
        return self.shape.prefill_rows - (self.prefill.count if self.prefill else 0)

    @property
    def first_slot(self) -> int:
        """The first slot that decodes; they are counted from 0."""
        return self.shape.slots - len(self.decodes)

    def segments_by_cache(self) -> list[PackedSegment | None]:
        """Whose cache each of `FusedShape.caches` is, None where nobody's is needed."""
        prompt = [self.prefill] if self.shape.prefill_rows else []
        return [*prompt, *[None] * self.first_slot, *self.decodes]

    def control(self) -> NDArray[np.int32]:
        """fusion_ctrl [5 + D]: is there a prompt, how many decodes, rows and past of the prompt, past of each slot.

        int32 [6] for one slot: prefill active, decode active, prefill rows, 0, prefill past, decode past.
        """
        control = np.zeros(CONTROL_HEAD + self.shape.slots, np.int32)
        if self.prefill is not None:
            control[[0, 2, 4]] = 1, self.prefill.count, self.prefill.past
        control[1] = len(self.decodes)
        control[CONTROL_HEAD + self.first_slot :] = [decode.past for decode in self.decodes]
        return control

    def logit_index(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the graph's logits of rows [R] of the batch are, [R]. PassFailed for a row that it gives none of."""
        index = self.row_of[rows] - (self.shape.rows - self.shape.logit_rows)
        if (index < 0).any():
            raise PassFailed(f"{self.shape.name} gives logits of its last {self.shape.logit_rows} rows only")
        return index


def place(batch: PackedBatch, shape: FusedShape, columns: int) -> Placement:
    """Put the segments of a pass into a graph's rows; a cache holds `columns` tokens.

    PassFailed for what the graph cannot do: a second prompt, more rows or more columns than it has.
    """
    segments = batch.segments
    # A single row may stand in either place: it sees its own past and itself.
    has_prefill = bool(segments) and (segments[0].count > 1 or len(segments) > shape.slots)
    prefill, decodes = (segments[0], segments[1:]) if has_prefill else (None, segments)
    _check(shape, prefill, decodes, columns)
    row_of = np.full(batch.shape.rows, PADDING, np.int64)
    if prefill is not None:
        row_of[prefill.start : prefill.end] = np.arange(shape.prefill_rows - prefill.count, shape.prefill_rows)
    for row, decode in zip(range(shape.rows - len(decodes), shape.rows), decodes, strict=True):
        row_of[decode.start] = row
    return Placement(shape, prefill, decodes, row_of)


def _check(shape: FusedShape, prefill: PackedSegment | None, decodes: tuple[PackedSegment, ...], columns: int) -> None:
    if len(decodes) > shape.slots or any(decode.count != 1 for decode in decodes):
        counts = ", ".join(str(decode.count) for decode in decodes)
        raise PassFailed(
            f"{shape.name} decodes {shape.slots} sequences a row each beside one prompt, not rows {counts}"
        )
    if prefill is not None and prefill.count > shape.prefill_rows:
        raise PassFailed(f"{prefill.count} prompt rows do not fit the {shape.prefill_rows} of {shape.name}")
    for segment in (*decodes, *((prefill,) if prefill else ())):
        if segment.both_ways:
            raise PassFailed(f"{shape.name} has no rows that see both ways")
        if segment.past + segment.count > columns:
            raise PassFailed(
                f"{segment.past} cached tokens and {segment.count} new ones overflow a cache of {columns} columns"
            )
