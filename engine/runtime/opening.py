"""The runtime of a bundle that generates, by the layout of its graphs.
Graphs may read a whole sequence at every step (AR = CL): what a column keeps is its token, not its key and value. To
the scheduler theirs is a runtime like others. Only sequences whose logits are wanted are computed, each of them whole;
as many as fit into the rows of a graph are packed into one run, and a step takes as many runs as it needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.adapters.adapter import Adapter
from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable, StepShape, shape_of
from engine.bundle.weight_files import read_forecast_prefix
from engine.errors import StepFailed
from engine.runtime.attention import EVERYTHING, AttentionWindow
from engine.runtime.fused import FusedRuntime
from engine.runtime.interface import Indices, Logits, PackedBatch, RowLayout, Runtime
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.serial import SerialRuntime
from engine.runtime.sessions import Provider

TokenIds = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Job:
    """A sequence to compute: all its tokens, which of them give logits, and how many see each other both ways."""

    tokens: TokenIds
    logit_rows: Indices
    block_rows: int


class WholeContextRuntime(Runtime):
    """Over one that runs `lengths` rows (N = C, P = 0) at once; it owns the tokens by column.
    Raises StepFailed for a sequence longer than the longest graph."""

    def __init__(self, inner: Runtime, lengths: Sequence[int], shapes: ShapeTable) -> None:
        super().__init__(shapes, inner.device)
        self._inner = inner
        self._lengths = sorted(lengths)
        self._columns, self._last = np.zeros(shapes.max_past, np.int32), np.zeros(0, np.int32)

    def run(self, batch: PackedBatch) -> Logits:
        self._last = batch.input_ids
        found = [self._run(group) for group in self._grouped(self._jobs(batch))]
        # Where nobody asks for logits there is nothing to compute.
        return Logits.joined(found) if found else Logits.of(np.empty((0, 1), np.float32))

    def non_finite_rows(self, rows: Indices) -> Indices:
        """None: tokens are what is kept."""
        return rows[:0]

    def keep(self, rows: Indices, columns: Indices) -> None:
        """Remember the tokens of `rows` [M] in `columns` [M]."""
        self._columns[columns] = self._last[rows]

    def close(self) -> None:
        self._inner.close()

    def _jobs(self, batch: PackedBatch) -> list[_Job]:
        jobs = []
        for segment in batch.segments:
            wanted = batch.logit_rows[(batch.logit_rows >= segment.start) & (batch.logit_rows < segment.end)]
            if len(wanted):
                places = np.arange(segment.past)
                blocks = np.array(segment.blocks, np.int64)
                columns = blocks[places // batch.block_size] * batch.block_size + places % batch.block_size
                tokens = np.concatenate([self._columns[columns], batch.input_ids[segment.start : segment.end]])
                jobs.append(_Job(tokens, wanted - segment.start + segment.past, segment.block_rows))
        return jobs

    def _grouped(self, jobs: Sequence[_Job]) -> list[list[_Job]]:
        """Neighbours that fit into one run together. With one pinned shape each runs alone: its rows never move."""
        groups: list[list[_Job]] = []
        room = 0
        for job in jobs:
            if len(job.tokens) > self._lengths[-1]:
                raise StepFailed(f"{len(job.tokens)} tokens are more than the {self._lengths[-1]} rows of the graph")
            if len(job.tokens) > room or self.shapes.has_one_shape:
                groups.append([])
                room = self._lengths[-1]
            groups[-1].append(job)
            room -= len(job.tokens)
        return groups

    def _run(self, group: Sequence[_Job]) -> Logits:
        """Right-aligned as any step: each sequence sees its own rows only, from position 0 on."""
        total = sum(len(job.tokens) for job in group)
        wanted = self._lengths[-1] if self.shapes.has_one_shape else total
        length = next(size for size in self._lengths if size >= wanted)
        layout = RowLayout(StepShape(length, 0), total)
        for job in group:
            layout.add(job.tokens, 0, logits=job.logit_rows.tolist(), block_rows=job.block_rows)
        logits = self._inner.run(layout.batch(block_size=1))
        return Logits(logits.codes.copy(), logits.encoding)


def open_generator(
    folder: Path,
    manifest: Manifest,
    shapes: ShapeTable,
    provider: Provider,
    adapters: Sequence[Adapter] = (),
    window: AttentionWindow = EVERYTHING,
    forecasts: bool = False,
) -> Runtime:
    """Everything loaded. forecasts: whether the rows that forecast are going to be used. BundleError."""
    if manifest.fused is not None:
        return FusedRuntime(folder, manifest, shapes, provider)
    if manifest.is_segmented:
        return SegmentRuntime(folder, manifest, shapes, provider, adapters, window)
    if manifest.reads_whole_context:
        found = sorted({shape for graph in manifest.graphs if (shape := shape_of(graph)) is not None})
        inner = OnnxRuntime(folder, manifest, ShapeTable(tuple(found), found[-1].rows, 0), provider)
        return WholeContextRuntime(inner, [shape.rows for shape in found], shapes)
    if manifest.is_serial:
        return SerialRuntime(folder, manifest, shapes, provider)
    runtime = OnnxRuntime(folder, manifest, shapes, provider)
    if manifest.forecast is not None and forecasts:
        runtime.load_prefix(read_forecast_prefix(folder, manifest.forecast, manifest.model, manifest.kv_dtype))
    return runtime
