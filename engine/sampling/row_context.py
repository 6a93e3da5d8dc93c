"""What the sampler must know of a row besides its logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.request import SamplingParams


@dataclass(frozen=True, slots=True)
class RowContext:
    """What one row needs besides its logits. `completion` are the tokens generated before it, guesses included.

    prompt: its tokens, each once will do.
    forbidden [V]: true for tokens that the grammar does not allow; None without a grammar.
    """

    params: SamplingParams
    seed: int
    prompt: Sequence[int]
    completion: Sequence[int]
    forbidden: NDArray[np.bool_] | None = None

    @property
    def index(self) -> int:
        """Number of the token being chosen, from 0."""
        return len(self.completion)
