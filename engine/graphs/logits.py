"""What a pass gives to sample from: logits as the graph stored them, decoded where somebody needs real numbers.

Shapes: R = rows that need logits, V = vocabulary.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array, Encoding

FLOAT32 = Encoding("float32")


@dataclass(frozen=True, slots=True)
class Logits:
    """codes: [R, V] in the type of `encoding`. A larger code is a larger logit: a scale is never negative."""

    codes: Array
    encoding: Encoding

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> "Logits":
        """Logits [R, V] that are real numbers already."""
        return cls(values, FLOAT32)

    def __len__(self) -> int:
        return len(self.codes)

    def decoded(self) -> NDArray[np.float32]:
        """Real numbers [R, V]; float32 codes are not copied."""
        return self.encoding.decode(self.codes)

    def rows(self, start: int, end: int) -> "Logits":
        """Rows `start` to `end` - 1, not copied."""
        return Logits(self.codes[start:end], self.encoding)
