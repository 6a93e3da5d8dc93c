"""Embeddings as clients send them."""

import base64
import io

import numpy as np


def encoded(values: np.ndarray, allow_pickle: bool = False) -> str:
    """base64 of what `numpy.save` writes."""
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=allow_pickle)
    return base64.b64encode(stream.getvalue()).decode()
