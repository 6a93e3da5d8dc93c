"""Scales that never divide by zero."""

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def without_zeros(scales: Float32) -> Float32:
    """A scale of 0 (only zeros were seen) would make NaN; any other value keeps them at zero."""
    return np.where(scales == 0, np.float32(1.0), scales).astype(np.float32)
