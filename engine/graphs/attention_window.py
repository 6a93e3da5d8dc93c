"""What rows of attention see of a long sequence: its first columns, which much attention falls on, and its last ones.

Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453; here positions are kept.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """A row sees the first `sinks` columns and the last `recent`, its own among them; recent 0 = all columns."""

    recent: int = 0
    sinks: int = 0

    def hides_some(self, columns: int) -> bool:
        """Whether a row that is the last of so many columns does not see all of them."""
        return self.recent > 0 and self.recent + self.sinks < columns

    def visible(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool [rows, columns] of positions in a sequence; what comes after a row is not hidden here."""
        if not self.recent:
            return np.ones((len(rows), len(columns)), np.bool_)
        return (columns[None, :] < self.sinks) | (columns[None, :] > rows[:, None] - self.recent)


EVERYTHING = AttentionWindow()
