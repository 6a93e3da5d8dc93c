"""Fresh keys and values as int8 codes. Legend: L = layers, M = rows, K = KV heads, D = head size."""

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array

LOWEST, HIGHEST = np.float32(-128), np.float32(127)


class FreshCodes:
    """Rounds as the attention operator does: times the inverse scale, to the nearest even, clamped.

    scales: [L, 2, K, D]. What comes out is valid until the next call.
    """

    def __init__(self, scales: NDArray[np.float32], most_rows: int) -> None:
        self._inverse = np.float32(1) / scales  # the operator's own float32 inverse: a division would round otherwise
        shape = (most_rows, *scales.shape[2:])
        self._numbers, self._codes = np.empty(shape, np.float32), np.empty(shape, np.int8)

    def of(self, layer: int, side: int, rows: NDArray[np.float32], indices: NDArray[np.int64]) -> Array:
        """int8 [M, K, D] of those rows. side: 0 = keys, 1 = values. Rows that are not finite give any codes."""
        numbers, codes = self._numbers[: len(indices)], self._codes[: len(indices)]
        np.take(rows, indices, axis=0, out=numbers, mode="clip")
        np.multiply(numbers, self._inverse[layer, side], out=numbers)
        np.rint(numbers, out=numbers)
        np.clip(numbers, LOWEST, HIGHEST, out=numbers)
        codes[...] = numbers
        return codes
