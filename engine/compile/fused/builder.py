"""A graph builder that names tensors after those of the row graph that they stand for.

The row graph computes attention once for all rows, a fused graph once for each cache. So one calibration, made with
row graphs, tells the encodings of both: `stands_for` says whose encoding a tensor has.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine.bundle.variant import PassShape
from engine.compile.graph_builder import LOGIT_ROWS, ROWS, GraphBuilder


class FusedBuilder(GraphBuilder):
    """Nodes outside `branch` and `moved` are the row graph's, in its order."""

    def __init__(self, dtype: str, shape: PassShape) -> None:
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
