"""A plan as arrays: which row holds which token, what it may see, where its keys and values go.

Shapes: N = rows of the shape, P = past columns, C = P + N, R = rows that need logits.
"""

from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array
from engine.bundle.variant import PassShape
from engine.embeddings.rows import EmbeddedRows, joined, prompt_rows
from engine.modes.forecast_tree import ForecastTree
from engine.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """Consecutive rows of one sequence: `count` of them from row `start` on.

    They see the sequence's `past` computed columns, which lie in `pages` in order, and themselves: in blocks of
    `block_rows` both ways, from block to block causally. room: how many columns the sequence is going to need, as far
    as can be foreseen. adapter: of its request. tree: what its rows see of each other instead, and which of them see
    the first columns of the pool.

    For recurrent layers: owner, the sequence's id, "" where nobody asks for the rows. state_key: of the snapshot that
    the rows go on from, b"" = where the sequence's last rows ended. snapshots: after how many of the rows the state is
    remembered, and as what.
    """

    start: int
    count: int
    pages: tuple[int, ...]
    past: int
    room: int
    block_rows: int = 1
    adapter: str = ""
    owner: str = ""
    state_key: bytes = b""
    snapshots: tuple[tuple[int, bytes], ...] = ()
    tree: ForecastTree | None = None

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.start + self.count

    def visible_rows(self) -> NDArray[np.bool_]:
        """Which of the segment's rows each of them sees, bool [count, count]."""
        if self.tree is not None:
            visible = np.zeros((self.count, self.count), np.bool_)
            for row, seen in enumerate(self.tree.seen):
                visible[row, list(seen)] = True
            return visible
        blocks = np.arange(self.count) // self.block_rows
        return blocks[:, None] >= blocks


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One pass, ready for a runtime. Rows are right-aligned: padding first, then segments in plan order.

    input_ids, positions: int32 [N], 0 in padding. logit_rows: int64 [R]. embedded: rows that have no token, if any.
    """

    shape: PassShape
    pool: int
    input_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    logit_rows: NDArray[np.int64]
    segments: tuple[PackedSegment, ...]
    page_columns: int
    embedded: EmbeddedRows | None = None

    @property
    def starts(self) -> tuple[int, ...]:
        """First row of each segment."""
        return tuple(segment.start for segment in self.segments)

    def visible(self) -> NDArray[np.bool_]:
        """What each row attends to, bool [N, C]."""
        visible = np.empty((self.shape.rows, self.shape.context), np.bool_)
        self.paint(visible, np.array([False, True]))
        return visible

    def paint(self, mask: Array, codes: Array) -> None:
        """Write the mask [N, C] of graphs that take one; codes [2]: of a column that is hidden, of one that is seen.

        A padding row sees itself alone, so that its softmax is defined.
        """
        shape, seen = self.shape, codes[1]
        mask.fill(codes[0])
        own = np.arange(shape.rows)
        mask[own, shape.past + own] = seen
        lone = [segment for segment in self.segments if _is_lone(segment, self.page_columns, shape.context)]
        _show_pasts(mask, lone, self.page_columns, codes)
        done = {segment.start for segment in lone}
        for segment in self.segments:
            if segment.start in done:
                continue
            rows = slice(segment.start, segment.end)
            _show_past(mask[rows], segment, self.page_columns, seen)
            if segment.tree is not None:
                mask[segment.start + segment.tree.nodes : segment.end, : segment.tree.prefix] = seen
            own_rows = codes[segment.visible_rows().view(np.int8)]
            mask[rows, shape.past + segment.start : shape.past + segment.end] = own_rows


def pack(plan: StepPlan, page_columns: int) -> PackedBatch:
    """Lay the segments of a plan into rows."""
    shape = plan.shape
    input_ids = np.zeros(shape.rows, np.int32)
    positions = np.zeros(shape.rows, np.int32)
    packed: list[PackedSegment] = []
    logit_rows: list[int] = []
    embedded: list[tuple[int, NDArray[np.float32]]] = []
    row = shape.rows - plan.rows_used
    assert row >= 0, f"{plan.rows_used} rows do not fit {shape}"
    for segment in plan.segments:
        count, pages = len(segment.tokens), len(segment.pages)
        end = row + count
        left = segment.past_columns - pages * page_columns
        assert left <= 0, f"position {segment.first_position}: {left} cached columns have no page"
        input_ids[row:end] = segment.tokens
        places = np.arange(count) if segment.tree is None else np.array(segment.tree.depths)
        positions[row:end] = segment.first_position + places
        logit_rows.extend(row + index for index in segment.logit_indices)
        request, last = segment.sequence.request, (segment.state_key, segment.snapshots, segment.tree)
        if request.prompt_embeds and segment.first_position < len(request.prompt_ids):
            tokens = len(request.prompt_ids)
            embedded.append((row, prompt_rows(request.prompt_embeds, tokens, segment.first_position, count)))
        past, room, block = segment.past_columns, segment.room, segment.sequence.block_length
        packed.append(PackedSegment(row, count, segment.pages, past, room, block, request.adapter, request.id, *last))
        row = end
    rows = np.array(logit_rows, np.int64)
    return PackedBatch(shape, plan.pool, input_ids, positions, rows, tuple(packed), page_columns, joined(embedded))


def _is_lone(segment: PackedSegment, page_columns: int, context: int) -> bool:
    """Whether it is one row whose past fills all its pages but the last."""
    if segment.count != 1 or segment.tree is not None or not segment.pages:
        return False
    unfilled = len(segment.pages) * page_columns - segment.past
    return 0 <= unfilled < page_columns and (max(segment.pages) + 1) * page_columns <= context


def _show_pasts(mask: Array, lone: list[PackedSegment], page_columns: int, codes: Array) -> None:
    """Open the cached columns of single rows, all pages at once, and close what the last page of each has beyond."""
    if not lone:
        return
    whole = mask.shape[1] // page_columns
    pages = mask[:, : whole * page_columns].reshape(len(mask), whole, page_columns)
    rows = np.repeat([segment.start for segment in lone], [len(segment.pages) for segment in lone])
    pages[rows, np.fromiter(chain.from_iterable(segment.pages for segment in lone), np.int64, len(rows))] = codes[1]
    for segment in lone:
        end = (segment.pages[-1] + 1) * page_columns
        mask[segment.start, end - (len(segment.pages) * page_columns - segment.past) : end] = codes[0]


def _show_past(rows: Array, segment: PackedSegment, page_columns: int, seen: np.generic) -> None:
    """Open the segment's cached columns; runs of adjacent pages are one slice."""
    left = segment.past
    for _, run in groupby(enumerate(segment.pages), key=lambda item: item[1] - item[0]):
        pages = [page for _, page in run]
        width = min(left, len(pages) * page_columns)
        rows[:, pages[0] * page_columns : pages[0] * page_columns + width] = seen
        left -= width
