"""Graphs that read a whole sequence at every step (AR = CL): what a column keeps is its token, not its key and value.

To the scheduler this is a runtime like others. Only sequences whose logits are wanted are computed, each of them whole;
as many as fit into the rows of a graph are packed into one run, and a pass takes as many runs as it needs.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.variant import PassShape, ShapeTable
from engine.errors import PassFailed
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.logits import Logits
from engine.graphs.runtime import Indices, Runtime

TokenIds = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Job:
    """A sequence to compute: all its tokens, which of them give logits, and how many see each other both ways."""

    tokens: TokenIds
    logit_rows: Indices
    block_rows: int


class WholeContextRuntime:
    """Implements `Runtime` over one that runs `lengths` rows (N = C, P = 0) at once; it owns the tokens by column.

    Raises PassFailed for a sequence longer than the longest graph.
    """

    def __init__(self, inner: Runtime, lengths: Sequence[int], shapes: ShapeTable) -> None:
        self._inner = inner
        self._lengths = sorted(lengths)
        self._shapes = shapes
        self._columns: TokenIds = np.zeros(shapes.max_past, np.int32)
        self._last: TokenIds = np.zeros(0, np.int32)

    @property
    def shapes(self) -> ShapeTable:
        """The shapes given."""
        return self._shapes

    @property
    def device(self) -> str:
        """What the graphs run on."""
        return self._inner.device

    @property
    def restrides(self) -> int:
        """Columns are never moved."""
        return 0

    def lay_out(self, pool: int, shape: PassShape) -> None:
        """Columns have one place."""

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [R, V] of the batch's logit rows, in their order."""
        self._last = batch.input_ids
        found = [self._run(group) for group in self._grouped(self._jobs(batch))]
        if not found:  # nobody asks for logits: there is nothing to compute
            return Logits.of(np.empty((0, 1), np.float32))
        return Logits(np.concatenate([logits.codes for logits in found]), found[0].encoding)

    def non_finite_rows(self, rows: Indices) -> Indices:
        """None: tokens are what is kept."""
        return rows[:0]

    def keep(self, pool: int, rows: Indices, columns: Indices) -> None:
        """Remember the tokens of `rows` [M] in `columns` [M]."""
        self._columns[columns] = self._last[rows]

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Never called: such bundles are served without a host cache, tokens are too little to be worth it."""
        raise AssertionError("a bundle whose graphs have no past has no host cache")

    load = offload

    def evict(self, key: bytes) -> None:
        """There is nothing to forget."""

    def free(self, pool: int, pages: Collection[int]) -> None:
        """Columns stay."""

    def close(self) -> None:
        """Release the graphs."""
        self._inner.close()

    def _jobs(self, batch: PackedBatch) -> list[_Job]:
        jobs = []
        for segment in batch.segments:
            wanted = batch.logit_rows[(batch.logit_rows >= segment.start) & (batch.logit_rows < segment.end)]
            if len(wanted):
                places = np.arange(segment.past)
                pages = np.array(segment.pages, np.int64)
                columns = pages[places // batch.page_columns] * batch.page_columns + places % batch.page_columns
                tokens = np.concatenate([self._columns[columns], batch.input_ids[segment.start : segment.end]])
                jobs.append(_Job(tokens, wanted - segment.start + segment.past, segment.block_rows))
        return jobs

    def _grouped(self, jobs: Sequence[_Job]) -> list[list[_Job]]:
        """Neighbours that fit into one run together. With one pinned shape each runs alone: its rows never move."""
        groups: list[list[_Job]] = []
        room = 0
        for job in jobs:
            if len(job.tokens) > self._lengths[-1]:
                raise PassFailed(f"{len(job.tokens)} tokens are more than the {self._lengths[-1]} rows of the graph")
            if len(job.tokens) > room or self._shapes.fixed:
                groups.append([])
                room = self._lengths[-1]
            groups[-1].append(job)
            room -= len(job.tokens)
        return groups

    def _run(self, group: Sequence[_Job]) -> Logits:
        """Right-aligned as any pass: each sequence sees its own rows only, from position 0 on."""
        total = sum(len(job.tokens) for job in group)
        length = self._lengths[-1] if self._shapes.fixed else next(size for size in self._lengths if size >= total)
        ids, positions = np.zeros(length, np.int32), np.zeros(length, np.int32)
        segments: list[PackedSegment] = []
        logit_rows: list[int] = []
        row = length - total
        for job in group:
            count = len(job.tokens)
            ids[row : row + count], positions[row : row + count] = job.tokens, np.arange(count)
            segments.append(PackedSegment(row, count, (), 0, count, job.block_rows))
            logit_rows += (row + job.logit_rows).tolist()
            row += count
        rows = np.array(logit_rows, np.int64)
        logits = self._inner.run(
            PackedBatch(PassShape(length, 0), 0, ids, positions, rows, tuple(segments), page_columns=1)
        )
        return Logits(logits.codes.copy(), logits.encoding)
