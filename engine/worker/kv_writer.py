"""Writing a pass's keys and values into the pool beside what the loop does until the next pass."""

from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from types import MappingProxyType

import numpy as np

from engine.grammar.masks import GrammarMasks
from engine.graphs.batch import PackedBatch
from engine.graphs.runtime import Indices, Runtime, WritesEarly
from engine.scheduling.plan import Segment, StepPlan

Paths = Mapping[str, tuple[int, ...]]
NOTHING: Mapping[str, int] = MappingProxyType({})
NO_PATHS: Paths = MappingProxyType({})


def certain_rows(plan: StepPlan, masks: GrammarMasks) -> dict[str, int]:
    """By sequence id, how many of its rows, from the first, are kept whatever is sampled from numbers that are sound.

    Not certain: guesses, sequences whose grammar may fail or whose mask may be late, and a row that is only scored.
    Rows of a block that is denoised have no column at all.
    """
    return {
        segment.sequence.id: _certain(segment)
        for segment in plan.segments
        if segment.sequence.id not in masks and segment.sequence.request.params.max_tokens
    }


def harmless_rows(plan: StepPlan) -> dict[str, int]:
    """By sequence id, how many of its rows, from the first, may be written whatever comes of them, guesses included.

    Their columns are theirs alone, and written anew before anything sees them if these rows are not kept. Of a tree
    only the first node has its place already. Sequences that end with the pass in any case wait for what is kept.
    """
    return {
        segment.sequence.id: 1 if segment.tree is not None else len(segment.targets)
        for segment in plan.segments
        if segment.sequence.request.params.max_tokens
    }


def _certain(segment: Segment) -> int:
    """Of a tree the first node, the newest token: it is the first of every path."""
    return 1 if segment.tree is not None else len(segment.targets) - len(segment.guesses)


class KvWriter:
    """One thread beside the loop's. Between `write` and `wait` the loop calls nothing that touches the pools.

    An executor is given by tests only.
    """

    def __init__(self, runtime: Runtime, thread: Executor | None) -> None:
        self._runtime = runtime
        self._early = runtime if isinstance(runtime, WritesEarly) else None
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="kv-writer")
        self._pending: list[Future[None]] = []

    def announce(self, plan: StepPlan, batch: PackedBatch, rows_of: Mapping[str, int]) -> None:
        """Before the pass: tell a runtime that can write while it runs which first rows of each sequence are kept."""
        if self._early is not None:
            self._early.expect(plan.pool, *_kept(plan, batch, rows_of, NOTHING, NO_PATHS))

    def write(
        self,
        plan: StepPlan,
        batch: PackedBatch,
        rows_of: Mapping[str, int],
        written: Mapping[str, int] = NOTHING,
        paths: Paths = NO_PATHS,
    ) -> None:
        """Begin to write the first rows of each sequence, without those that `written` has: in one go.

        paths: of sequences whose rows are a tree, the nodes that take the place of its first rows.
        """
        kept = _kept(plan, batch, rows_of, written, paths)
        if len(kept[0]):
            self._pending.append(self._thread.submit(self._runtime.keep, plan.pool, *kept))

    def write_now(
        self, plan: StepPlan, batch: PackedBatch, rows_of: Mapping[str, int], paths: Paths = NO_PATHS
    ) -> None:
        """Write the first rows of each sequence before returning."""
        kept = _kept(plan, batch, rows_of, NOTHING, paths)
        if len(kept[0]):
            self._runtime.keep(plan.pool, *kept)

    def wait(self) -> None:
        """Until everything is written; raises what went wrong with it."""
        pending, self._pending = self._pending, []
        for write in pending:
            write.result()

    def close(self) -> None:
        """Finish, and let the thread end."""
        self._thread.shutdown()


def _kept(
    plan: StepPlan, batch: PackedBatch, rows_of: Mapping[str, int], written: Mapping[str, int], paths: Paths
) -> tuple[Indices, Indices]:
    """Rows [M] of the pass, and the columns [M] they go to."""
    rows: list[int] = []
    columns: list[int] = []
    for segment, start in zip(plan.segments, batch.starts, strict=True):
        first, last = written.get(segment.sequence.id, 0), rows_of.get(segment.sequence.id, 0)
        path = paths.get(segment.sequence.id) or range(len(segment.tokens))
        rows.extend(start + row for row in path[first:last])
        columns.extend(segment.targets[first:last])
    return np.array(rows, np.int64), np.array(columns, np.int64)
