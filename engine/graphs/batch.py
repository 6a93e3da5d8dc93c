"""A plan as arrays: which row holds which token, what it may see, where its keys and values go.

Shapes: N = rows of the shape, P = past columns, C = P + N, R = rows that need logits.
"""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from engine.bundle.variant import PassShape
from engine.scheduling.plan import Segment, StepPlan


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One pass, ready for a runtime. Rows are right-aligned: padding first, then segments in plan order.

    input_ids, positions: int32 [N], 0 in padding. visible: bool [N, C], what each row attends to; a padding row
    sees itself alone, so that its softmax is defined. logit_rows: int64 [R]. starts: first row of each segment.
    """

    shape: PassShape
    pool: int
    input_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    visible: NDArray[np.bool_]
    logit_rows: NDArray[np.int64]
    starts: tuple[int, ...]


def pack(plan: StepPlan, page_columns: int) -> PackedBatch:
    """Lay the segments of a plan into rows, and their pages into the mask."""
    shape = plan.shape
    input_ids = np.zeros(shape.rows, np.int32)
    positions = np.zeros(shape.rows, np.int32)
    visible = np.zeros((shape.rows, shape.context), np.bool_)
    own = np.arange(shape.rows)
    visible[own, shape.past + own] = True
    starts: list[int] = []
    logit_rows: list[int] = []
    row = shape.rows - plan.rows_used
    assert row >= 0, f"{plan.rows_used} rows do not fit {shape}"
    for segment in plan.segments:
        end = row + len(segment.tokens)
        input_ids[row:end] = segment.tokens
        positions[row:end] = np.arange(segment.first_position, segment.first_position + end - row)
        _show_past(visible[row:end], segment, page_columns)
        _show_fresh(visible[row:end, shape.past + row : shape.past + end])
        logit_rows.extend(range(end - segment.logit_rows, end))
        starts.append(row)
        row = end
    return PackedBatch(shape, plan.pool, input_ids, positions, visible, np.array(logit_rows, np.int64), tuple(starts))


def _show_past(rows: NDArray[np.bool_], segment: Segment, page_columns: int) -> None:
    """Open the segment's cached columns; runs of adjacent pages are one slice."""
    left = segment.past_columns
    for _, run in groupby(enumerate(segment.pages), key=lambda item: item[1] - item[0]):
        pages = [page for _, page in run]
        width = min(left, len(pages) * page_columns)
        rows[:, pages[0] * page_columns : pages[0] * page_columns + width] = True
        left -= width
    assert left == 0, f"position {segment.first_position}: {left} cached columns have no page"


def _show_fresh(square: NDArray[np.bool_]) -> None:
    """Each row sees the segment's rows before it, and itself."""
    square[:] = np.tri(len(square), dtype=np.bool_)
