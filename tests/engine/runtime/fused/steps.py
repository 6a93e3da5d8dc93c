"""Runs steps of fused graphs by hand: which sequence takes which rows, and what is kept."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape, shape_table
from engine.runtime.fused import FusedCache, FusedRuntime
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.sessions import Provider, cpu_provider
from tests.bundles import Bundles

COLUMNS = 64


@contextmanager
def opened(
    bundles: Bundles, layout: str = "fused", by_graph: bool | None = None, provider: Provider | None = None
) -> Iterator[FusedRuntime]:
    """A runtime of a layout of tiny random weights."""
    folder = bundles(layout)
    manifest = load_manifest(folder)
    runtime = FusedRuntime(folder, manifest, shape_table(manifest, 1), provider or cpu_provider(1), by_graph)
    yield runtime
    runtime.close()


class HandSteps:
    """Sequences by number; a sequence's number is its cache's block. tokens: what each has computed."""

    def __init__(self, runtime: FusedRuntime, columns: int = COLUMNS) -> None:
        self.runtime = runtime
        self._columns = columns
        self.tokens: dict[int, list[int]] = {}

    def batch(self, rows: int, *parts: tuple[int, tuple[int, ...]]) -> PackedBatch:
        """(sequence, its next tokens), prompt first; every sequence's last row asks for logits."""
        row = rows - sum(len(tokens) for _, tokens in parts)
        ids, positions, segments = np.zeros(rows, np.int32), np.zeros(rows, np.int32), []
        for number, tokens in parts:
            past, end = len(self.tokens.get(number, ())), row + len(tokens)
            ids[row:end], positions[row:end] = tokens, past + np.arange(len(tokens))
            segments.append(PackedSegment(row, len(tokens), (number,) if past else (), past, end))
            row = end
        last = np.array([segment.end - 1 for segment in segments], np.int64)
        return PackedBatch(StepShape(rows, self._columns + 1), ids, positions, last, tuple(segments), self._columns)

    def run(self, rows: int, *parts: tuple[int, tuple[int, ...]]) -> np.ndarray:
        """Run a step and keep every row; logits [parts, V]."""
        batch = self.batch(rows, *parts)
        logits = self.runtime.run(batch).decoded().copy()
        for (number, tokens), segment in zip(parts, batch.segments, strict=True):
            done = self.tokens.setdefault(number, [])
            columns = number * self._columns + len(done) + np.arange(len(tokens))
            self.runtime.keep(np.arange(segment.start, segment.end), columns)
            done.extend(tokens)
        return logits

    def cache(self, number: int) -> FusedCache:
        """Where a sequence's keys and values lie."""
        return self.runtime._caches._named[number]

    def computed(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a sequence's tokens."""
        cache, count = self.cache(number), len(self.tokens[number])
        return cache.keys[..., :count].copy(), cache.values[..., :count, :].copy()
