"""A seeded orthogonal matrix that is never built whole: random signs, then a Kronecker product of small matrices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.compile.transforms.hadamard import Float64, orthogonal_factors


@dataclass(frozen=True, slots=True)
class Rotation:
    """R = diag(signs) (F1 x F2 x ...), [size, size]. signs: [size]."""

    signs: Float64
    factors: tuple[Float64, ...]

    @classmethod
    def seeded(cls, size: int, seed: Sequence[int]) -> "Rotation":
        """The same for the same seed, whatever is made before or after it."""
        generator = np.random.default_rng(list(seed))
        signs = generator.choice(np.array([-1.0, 1.0]), size)
        return cls(signs, orthogonal_factors(size, generator))

    @property
    def size(self) -> int:
        """Length of the vectors that it turns."""
        return len(self.signs)

    def turn(self, x: Float64) -> Float64:
        """x R for x [..., blocks * size], each block by itself."""
        turned = x.reshape(-1, self.size) * self.signs
        # Each acts on the last part of the index and moves it to the front: after all of them the order is restored.
        for factor in reversed(self.factors):
            width = len(factor)
            parts = turned.reshape(-1, self.size // width, width) @ factor
            turned = parts.swapaxes(1, 2).reshape(-1, self.size)
        return turned.reshape(x.shape)
