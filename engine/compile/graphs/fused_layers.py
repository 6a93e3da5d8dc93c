"""A graph builder that names tensors after those of the row graph, and the layers of a fused graph.

The row graph computes attention once for all rows, a fused graph once for each cache. So one calibration, made with
row graphs, tells the encodings of both: `stands_for` says whose encoding a tensor has.

Shapes: N rows, n of them a branch's, P past columns, K KV heads, G query heads on one of them, H head size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.bundle.fused import FusedShape, cache_tensors
from engine.bundle.variant import StepShape
from engine.compile.graphs.graph_builder import LOGIT_ROWS, ROWS, GraphBuilder
from engine.compile.graphs.layers import MASK_INPUT, LayerWriter


class FusedBuilder(GraphBuilder):
    """Nodes outside `branch` and `moved` are the row graph's, in its order."""

    def __init__(self, dtype: str, shape: StepShape) -> None:
        super().__init__(dtype, shape)
        self.stands_for: dict[str, str] = {}
        self._place = 0  # of the next node in the row graph
        self._branch = ""
        self._is_moved = False

    @property
    def place(self) -> int:
        """Where the next node stands in the row graph."""
        return self._place

    @contextmanager
    def branch(self, label: str, start: int) -> Iterator[None]:
        """Write the row graph's nodes from place `start` on once more, for the cache called `label`."""
        furthest = self._place
        self._branch, self._place = f"_{label}", start
        yield
        self._branch, self._place = "", max(furthest, self._place)

    def moved(self, kind: str, inputs: Sequence[str], like: str, **attributes: Any) -> str:
        """A node that the row graph does not have; its result has the encoding of `like`."""
        self._is_moved = True
        (made,) = self.op_many(kind, inputs, 1, **attributes)
        self._is_moved = False
        self.stands_for[made] = self.stands_for.get(like, like)
        return made

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        """Entries `start` to `stop` - 1 of an axis."""
        bounds = [self.integers(number) for number in (start, stop, axis)]
        return self.moved("Slice", [x, *bounds], x)

    def laid_out(self, x: str, *dims: int) -> str:
        """The same numbers in another shape."""
        return self.moved("Reshape", [x, self.integers(*dims)], x)

    def narrow(self, rows: int) -> None:
        """From here on the graph has so many rows; what was made for all rows is not used again."""
        self._numbers |= {ROWS: rows, LOGIT_ROWS: rows}
        self._shared.clear()

    def op_many(
        self, kind: str, inputs: Sequence[str], count: int, domain: str = "", name: str = "", **attributes: Any
    ) -> list[str]:
        """As the row graph's builder does, and remember what the results stand for."""
        place = self._place
        made = super().op_many(kind, inputs, count, domain, name, **attributes)
        if not self._is_moved:
            twins = [f"{kind}_{place}_{index}" for index in range(count)]
            twins[-1] = name or twins[-1]
            self.stands_for |= zip(made, twins, strict=True)
        return made

    def node(
        self, kind: str, inputs: Sequence[str], outputs: list[str], domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node, and step on in the row graph."""
        made = super().node(kind, inputs, outputs, domain, **attributes)
        self._place += not self._is_moved
        return made

    def _stem(self, kind: str) -> str:
        return f"moved_{len(self._nodes)}_{kind}" if self._is_moved else f"{kind}_{self._place}{self._branch}"


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows `start` to `stop` - 1 of a graph, which read one cache and themselves."""

    cache: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start


def branches_of(shape: FusedShape) -> tuple[Branch, ...]:
    """The prompt's rows if there are any, then each decode."""
    starts = [0, *range(shape.prefill_rows, shape.rows)] if shape.prefill_rows else list(range(shape.rows))
    return tuple(map(Branch, shape.caches, starts, [*starts[1:], shape.rows]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayerWriter(LayerWriter):
    """Writes the layers of one fused graph. mask: the graph's mask as it is added to scores, [1, 1, N, P + N]."""

    fused: FusedBuilder
    shape: FusedShape
    mask: str = MASK_INPUT

    def _mix(self, query: str, fresh_key: str, fresh_value: str, index: int) -> str:
        """Attention of each branch over its cache and its own rows; nothing of another branch is read."""
        graph, spec = self.fused, self.network.spec
        group, size, start = spec.heads // spec.kv_heads, spec.head_dim, self.fused.place
        whole = graph.laid_out(query, spec.kv_heads, group, self.shape.rows, size)
        mixed = []
        for branch in branches_of(self.shape):
            rows = graph.cut(whole, 2, branch.start, branch.stop)
            key = graph.cut(fresh_key, 3, branch.start, branch.stop)
            value = graph.cut(fresh_value, 2, branch.start, branch.stop)
            mask = graph.once(f"mask_{branch.cache}", partial(self._mask_of, branch))
            folded = graph.laid_out(rows, *self._folded(branch, size))
            with graph.branch(branch.cache, start):
                found = self._attend(branch, (folded, key, value, mask), index)
            mixed.append(graph.laid_out(found, spec.kv_heads, group, branch.rows, size))
        return mixed[0] if len(mixed) == 1 else graph.moved("Concat", mixed, mixed[0], axis=2)

    def _folded(self, branch: Branch, last: int) -> tuple[int, ...]:
        """Query heads as rows of their key head; of a lone row apart where the target prefers that."""
        spec = self.network.spec
        group = spec.heads // spec.kv_heads
        if branch.rows == 1 and self.lowering.spreads_single_row:
            return spec.kv_heads, group, 1, last
        return spec.kv_heads, 1, branch.rows * group, last

    def _mask_of(self, branch: Branch) -> str:
        """The branch's part of the mask [1, 1, n, P + n]: its cache's columns and those of its own rows."""
        graph, past = self.fused, self._past
        rows = graph.cut(self.mask, 2, branch.start, branch.stop)
        if branch.start == 0:
            return graph.cut(rows, 3, 0, past + branch.stop)
        parts = [graph.cut(rows, 3, 0, past), graph.cut(rows, 3, past + branch.start, past + branch.stop)]
        return graph.moved("Concat", parts, self.mask, axis=3)

    def _attend(self, branch: Branch, operands: tuple[str, str, str, str], index: int) -> str:
        """The row graph's nodes of `LayerWriter.mixed`."""
        graph, spec, dtype = self.fused, self.network.spec, str(self.fused.dtype)
        query, key, value, mask = operands
        names = cache_tensors("past", branch.cache, index)
        graph.add_input(names[0], dtype, spec.kv_heads, 1, spec.head_dim, "past")
        graph.add_input(names[1], dtype, spec.kv_heads, 1, "past", spec.head_dim)
        for name, side in zip(names, ("key", "value"), strict=True):
            graph.stands_for[name] = f"past_{side}_{index}_in"
        return self.mixed(
            query,
            (names[0], key),
            (names[1], value),
            lambda: graph.once(f"folded_mask_{branch.cache}", partial(self._folded_over, branch, mask)),
            lambda: graph.integers(self._past, branch.rows),
        )

    def _folded_over(self, branch: Branch, mask: str) -> str:
        """A branch's mask repeated for the group, in the layout of its scores."""
        graph, spec = self.fused, self.network.spec
        repeated = graph.op("Expand", [mask, graph.integers(1, spec.heads // spec.kv_heads, 1, 1)])
        shape = self._folded(branch, self._past + branch.rows)
        return graph.op("Reshape", [repeated, graph.constant(np.array((1, *shape[1:]), np.int64))])

    @property
    def _past(self) -> int:
        assert self.fused.shape is not None
        return self.fused.shape.past
