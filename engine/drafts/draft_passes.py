"""Passes of a draft's graphs: shapes, prices, rows, and which keys and values stay in its one pool."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.bundle.variant import PassShape, ShapeTable
from engine.cache.pages import PagePool
from engine.config import PAGE_COLUMNS
from engine.drafts.follower import Follower, Followers
from engine.errors import PassFailed
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.logits import Logits
from engine.graphs.runtime import Runtime
from engine.scheduling.costs import CostTable

READING_ROWS = (128, 64, 32, 16)
LEAST_READING_ROWS = 8
READING_MS = 60.0  # of one step, so that nobody's next token waits long


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Rows of one sequence: its next tokens, of which the first `kept` stay in its pages.

    logits: indices of the rows whose logits are wanted. coming: tokens that are expected behind them.
    """

    follower: Follower
    tokens: Sequence[int]
    kept: int
    logits: Sequence[int] = ()
    coming: int = 0


class DraftPasses:
    """Owns a runtime with one pool and the pages of its cache. clock: seconds."""

    def __init__(self, runtime: Runtime, costs: CostTable, clock: Callable[[], float]) -> None:
        self._runtime = runtime
        self._shapes = _wide(runtime.shapes)
        self._costs = costs
        self._clock = clock
        self._width = 0
        columns = min((shape.past for shape in self._shapes.fixed), default=self._shapes.max_past)
        self.followers = Followers(PagePool(columns, PAGE_COLUMNS), self.block_rows)

    @property
    def block_rows(self) -> int:
        """Rows that see each other both ways; 1 = none do."""
        return self._shapes.unit

    @property
    def max_rows(self) -> int:
        """Rows of the widest pass."""
        return self._shapes.max_rows

    @property
    def columns(self) -> int:
        """Columns of its pool."""
        return self.followers.pool.page_count * PAGE_COLUMNS

    @property
    def reading_rows(self) -> int:
        """Rows of a prompt that are read in one step, whole blocks of them."""
        least = max(self.block_rows, min(LEAST_READING_ROWS, self.max_rows))
        fitting = [rows for rows in READING_ROWS if least <= rows <= self.max_rows]
        rows = next((rows for rows in fitting if self.price(rows) <= READING_MS), least)
        return rows - rows % self.block_rows

    def price(self, rows: int) -> float:
        """Milliseconds of a pass of so many rows as it would run now."""
        shapes = self._shapes
        if shapes.free:
            return self._costs.milliseconds(PassShape(min(rows, shapes.max_rows), max(shapes.past_step, self._width)))
        able = [shape for shape in shapes.fixed if shape.rows >= rows] or [max(shapes.fixed)]
        return min(self._costs.milliseconds(shape) for shape in able)

    def run(self, parts: Sequence[DraftRows]) -> Logits:
        """One pass, and what it leaves in the pool. PassFailed, also when it computed what is not finite.

        Logits [R, V] of the rows that want them, in order, valid until the next pass.
        """
        batch = self._pack(parts)
        self._width = batch.shape.past
        began = self._clock()
        logits = self._runtime.run(batch)
        self._costs.observe(batch.shape, 1000.0 * (self._clock() - began))
        if len(self._runtime.non_finite_rows(np.arange(batch.segments[0].start, batch.shape.rows))):
            raise PassFailed("it computed keys or values that are not finite")
        rows: list[int] = []
        columns: list[int] = []
        for part, start in zip(parts, batch.starts, strict=True):
            rows += range(start, start + part.kept)
            columns += self.followers.columns(part.follower, part.kept)
            part.follower.tokens += part.tokens[: part.kept]
        if rows:
            self._runtime.keep(0, np.array(rows, np.int64), np.array(columns, np.int64))
        return logits

    def retain(self, sequence_ids: Collection[str]) -> None:
        """Forget every other sequence."""
        self.followers.retain(sequence_ids)
        self.free()

    def free(self) -> None:
        """Give memory of pages back that nobody wants."""
        if emptied := self.followers.pool.take_emptied():
            self._runtime.free(0, emptied)

    def close(self) -> None:
        """Close the runtime."""
        self._runtime.close()

    def _pack(self, parts: Sequence[DraftRows]) -> PackedBatch:
        """The rows of a pass, right-aligned."""
        used = sum(len(part.tokens) for part in parts)
        shape = self._shape(used, max(len(part.follower.tokens) for part in parts))
        ids, positions = np.zeros(shape.rows, np.int32), np.zeros(shape.rows, np.int32)
        segments: list[PackedSegment] = []
        logit_rows: list[int] = []
        row = shape.rows - used
        for part in parts:
            past, count = len(part.follower.tokens), len(part.tokens)
            ids[row : row + count] = part.tokens
            positions[row : row + count] = np.arange(past, past + count)
            pages = tuple(part.follower.pages[: -(-past // PAGE_COLUMNS)])
            room = past + count + part.coming
            segments.append(PackedSegment(row, count, pages, past, room, self.block_rows))
            logit_rows += [row + index for index in part.logits]
            row += count
        return PackedBatch(
            shape, 0, ids, positions, np.array(logit_rows, np.int64), tuple(segments), page_columns=PAGE_COLUMNS
        )

    def _shape(self, rows: int, past: int) -> PassShape:
        """The cheapest shape of at least so many rows over the pool as it is used; past: the longest of the pass."""
        shapes, pool = self._shapes, self.followers.pool
        if shapes.segmented:
            return PassShape(rows, shapes.round_past(past))
        if shapes.free:
            return PassShape(rows, max(shapes.round_past(pool.high_water(with_cached=True)), self._width))
        used = pool.high_water(with_cached=False)
        able = [shape for shape in shapes.fixed if shape.rows >= rows and shape.past >= used]
        chosen = min(able, key=lambda s: self._costs.milliseconds(s) + self._costs.switch_ms(self._width, s))
        pool.trim(chosen.past)
        return chosen


def in_parts(counts: Sequence[int], max_rows: int) -> list[slice]:
    """Consecutive sequences of so many rows each, as few passes as this order allows."""
    parts: list[slice] = []
    start = rows = 0
    for index, count in enumerate(counts):
        if rows + count > max_rows and index > start:
            parts.append(slice(start, index))
            start, rows = index, 0
        rows += count
    return [*parts, slice(start, len(counts))] if counts else []


def _wide(shapes: ShapeTable) -> ShapeTable:
    """Without the fixed shapes of less than half the widest past: all that are left span the same columns."""
    if shapes.free:
        return shapes
    wide = tuple(shape for shape in shapes.fixed if 2 * shape.past >= shapes.max_past)
    return replace(shapes, fixed=wide, max_rows=max(shape.rows for shape in wide))
