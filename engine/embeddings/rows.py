"""Which rows of a pass are given as embeddings, and their numbers.

Shapes: N = rows of a pass, M = of these the ones with an embedding, H = hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array, Encoding


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """rows: int64 [M], of the pass. values: float32 [M, H]."""

    rows: NDArray[np.int64]
    values: NDArray[np.float32]

    def write(self, hidden: Array, encoding: Encoding) -> None:
        """Put them in the place of what the embedding graph made of the rows' token ids: [1, N, H]."""
        hidden[0, self.rows] = encoding.encode(self.values.astype(np.float64))

    def moved(self, row_of: NDArray[np.int64]) -> "EmbeddedRows":
        """The same after the rows of the pass have changed places."""
        return EmbeddedRows(row_of[self.rows], self.values)


def prompt_rows(embeds: bytes, tokens: int, first: int, count: int) -> NDArray[np.float32]:
    """Of a prompt of `tokens` rows those from position `first` on, at most `count`: [0 to count, H]."""
    values = np.frombuffer(embeds, "<f4").reshape(tokens, -1)
    return values[first : first + count]


def joined(found: Sequence[tuple[int, NDArray[np.float32]]]) -> EmbeddedRows | None:
    """Runs of rows, each from its first row on; None when there is none."""
    if not found:
        return None
    rows = [np.arange(start, start + len(values)) for start, values in found]
    return EmbeddedRows(np.concatenate(rows), np.concatenate([values for _, values in found]))
