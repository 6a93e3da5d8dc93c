"""The seam between the engine and whatever runs graphs. `fake_runtime` and `onnx_runtime` implement it."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.bundle.variant import ShapeTable
from engine.graphs.batch import PackedBatch

Logits = NDArray[np.float32]
Indices = NDArray[np.int64]


class Runtime(Protocol):
    """Owns the graphs and the pools' key and value bytes; knows nothing of sequences or pages."""

    @property
    def shapes(self) -> ShapeTable:
        """The shapes `run` accepts."""

    @property
    def device(self) -> str:
        """What really computes: 'CPU', 'HTP emulator' or 'NPU'."""

    @property
    def pool_bytes(self) -> int:
        """Bytes the pools hold now."""

    @property
    def restrides(self) -> int:
        """How often a pool was re-laid for another width."""

    def run(self, batch: PackedBatch) -> Logits:
        """Run one pass; logits [len(batch.logit_rows), vocab] float32, valid until the next run. Changes no pool.

        Raises PassFailed.
        """

    def non_finite_rows(self, rows: Indices) -> Indices:
        """Which of `rows` of the last pass have keys or values that are not finite; kept, they would spoil the pool."""

    def keep(self, pool: int, rows: Indices, columns: Indices) -> None:
        """Write the last pass's fresh KV of `rows` into `columns` of `pool`."""

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the KV of `columns` out of a pool and remember it as `key`."""

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy what was stowed as `key` into `columns` of a pool, widening it if need be."""

    def evict(self, key: bytes) -> None:
        """Forget a copy; unknown keys are ignored."""

    def close(self) -> None:
        """Release buffers, then graphs, then the session environment."""
