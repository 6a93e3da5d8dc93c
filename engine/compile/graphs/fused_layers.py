"""The layers of a fused graph, whose tensors are named after those of the row graph.

The row graph computes attention once for all rows, a fused graph once for each cache. So one calibration, made with
row graphs, tells the encodings of both: `twin_of` says whose encoding a tensor has.

Shapes: N rows, n of them a branch's, P past columns, K KV heads, G query heads on one of them, H head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.bundle.fused import FusedShape, cache_tensors
from engine.compile.graphs.graph_builder import LOGIT_ROWS, ROWS, GraphBuilder
from engine.compile.graphs.layers import MASK_INPUT, LayerWriter

AGAIN = "__"  # behind it, in a name: for which cache a tensor of the row graph is made, or as which part


def twin_of(name: str) -> str:
    """The tensor of the row graph that has the same encoding."""
    return name.partition(AGAIN)[0]


class FusedBuilder(GraphBuilder):
    """Also writes nodes that the row graph does not have: they move numbers and do not count."""

    def moved(self, kind: str, inputs: Sequence[str], like: str, **attributes: Any) -> str:
        """A node whose result has the encoding of `like`."""
        number = len(self._nodes)
        with self.scope(f"moved_{number}"):
            return self.op(kind, inputs, name=f"{twin_of(like)}{AGAIN}{number}", **attributes)

    def cut(self, x: str, axis: int, start: int, stop: int) -> str:
        bounds = [self.integers(number) for number in (start, stop, axis)]
        return self.moved("Slice", [x, *bounds], x)

    def laid_out(self, x: str, *dims: int) -> str:
        """The same numbers in another shape."""
        return self.moved("Reshape", [x, self.integers(*dims)], x)

    def narrow(self, rows: int) -> None:
        """From here on the graph has so many rows; what was made for all rows is not used again."""
        self._numbers |= {ROWS: rows, LOGIT_ROWS: rows}
        self._shared.clear()


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows `start` to `stop` - 1 of a graph, which read one cache and themselves."""

    cache: str
    start: int
    stop: int

    @property
    def rows(self) -> int:
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
        group, size = spec.heads // spec.kv_heads, spec.head_dim
        whole = graph.laid_out(query, spec.kv_heads, group, self.shape.rows, size)
        mixed = []
        for branch in branches_of(self.shape):
            rows = graph.cut(whole, 2, branch.start, branch.stop)
            key = graph.cut(fresh_key, 3, branch.start, branch.stop)
            value = graph.cut(fresh_value, 2, branch.start, branch.stop)
            mask = graph.once(f"mask_{branch.cache}", partial(self._mask_of, branch))
            folded = graph.laid_out(rows, *self._folded(branch, size))
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
        return self.mixed(
            index,
            query,
            (names[0], key),
            (names[1], value),
            lambda: graph.once(f"folded_mask_{branch.cache}", partial(self._folded_over, branch, mask)),
            lambda: graph.integers(self._past, branch.rows),
            f"{AGAIN}{branch.cache}",
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
