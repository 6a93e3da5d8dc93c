"""The seam between the engine and whatever runs graphs. See `onnx_runtime`, `paced_runtime`.

Shapes: N = rows of a pass, R = those that need logits, M = some of its rows, V = vocabulary.
"""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from engine.bundle.variant import PassShape, ShapeTable
from engine.graphs.batch import PackedBatch
from engine.graphs.logits import Logits

Indices = NDArray[np.int64]


class Runtime(Protocol):
    """Owns the graphs and the pools' key and value bytes; knows nothing of sequences or pages."""

    @property
    def shapes(self) -> ShapeTable:
        """The shapes `run` accepts."""

    @property
    def device(self) -> str:
        """What really computes: 'CPU', 'HTP emulator' or 'NPU'; 'paced ...' where nothing does."""

    @property
    def restrides(self) -> int:
        """How often a pool was re-laid for another width."""

    def lay_out(self, pool: int, shape: PassShape) -> None:
        """Make a pool ready for passes of `shape`: re-lay it if it has another width, which loses columns beyond.

        `run` does the same for a pool that is not ready; here it can be timed apart from the graphs.
        """

    def run(self, batch: PackedBatch) -> Logits:
        """Run one pass of N rows; logits [R, V] of its R logit rows, valid until the next run. Changes no column.

        Raises PassFailed.
        """

    def non_finite_rows(self, rows: Indices) -> Indices:
        """Which of `rows` [M] of the last pass, 0 to N - 1, have fresh keys or values with NaN or infinity: [0 to M].

        Kept, they would spoil the pool: a masked column still counts as 0 times its value, and 0 times NaN is NaN.
        """

    def keep(self, pool: int, rows: Indices, columns: Indices) -> None:
        """Write the fresh keys and values of `rows` [M] of the last pass into `columns` [M] of `pool`, pair by pair.

        A pool that does not reach the highest column is widened. May be called in another thread than the others; while
        it writes, nobody calls anything that runs a pass or touches a pool.
        """

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the keys and values of `columns`, one page of a pool, to host memory under `key`.

        The copy is made at once or beside the next pass; whatever is asked for later finds it made.
        """

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy what was offloaded as `key` into `columns`, one page of a pool, widening the pool if need be."""

    def evict(self, key: bytes) -> None:
        """Forget the copy in host memory; unknown keys are ignored."""

    def free(self, pool: int, pages: Collection[int]) -> None:
        """What lies in `pages` of `pool` is not wanted any more: memory that holds nothing else may be given back."""

    def close(self) -> None:
        """Release buffers, then graphs, then the session environment."""


@runtime_checkable
class KeepsStates(Protocol):
    """A runtime whose sequences carry a state beside keys and values."""

    def forget_states(self, sequences: Collection[str], snapshots: Collection[bytes]) -> None:
        """Give back the states of sequences that have ended, by their ids, and snapshots, by their keys."""


@runtime_checkable
class StoresPages(Protocol):
    """A runtime whose copies of pages in host memory can be had as bytes: keys, then values, all layers."""

    def offloaded(self, key: bytes) -> bytes:
        """The copy under `key`. KeyError when there is none."""

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        """Put a copy in host memory, of exactly the bytes that `offloaded` has given for a page."""


@runtime_checkable
class WritesEarly(Protocol):
    """A runtime that may write keys and values once their part has run, while others run, also of the next pass."""

    def expect(self, pool: int, rows: Indices, columns: Indices) -> None:
        """Of the pass that comes next, `rows` [M] are kept in `columns` [M], or in none.

        No row of any pass sees these columns before they are kept, so what is written early changes nothing. `keep` is
        called for those that are kept all the same, and need not wait until they are written.
        """


@runtime_checkable
class TimesParts(Protocol):
    """A runtime that also says where the time of its passes goes."""

    @property
    def part_seconds(self) -> Mapping[str, float]:
        """Seconds inside `run` by part, since the start."""
