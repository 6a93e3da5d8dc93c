"""Of a pass's outputs, the numbers that a sequence wants instead of a token."""

import numpy as np

from engine.graphs.logits import Logits
from engine.request import Pooling
from engine.sampling.sampler import BadLogits


def pooled(outputs: Logits, place: int, pooling: Pooling) -> bytes | BadLogits:
    """Row `place` of the outputs [R, X], or some numbers of it, as float32; BadLogits when one is not finite."""
    row = outputs.rows(place, place + 1).decoded()[0]
    wanted = row[list(pooling.token_ids)] if pooling.token_ids else row
    if not np.isfinite(wanted).all():
        return BadLogits("the graph returned numbers that are not finite for this request")
    return bytes(wanted.astype("<f4"))
