"""The sampler's order written down once more, plainly: everything as float64, the whole vocabulary sorted."""

import numpy as np

from engine.request import SamplingParams
from engine.sampling.sampler import uniform


def plain_token(values: np.ndarray, params: SamplingParams, seed: int, index: int) -> int:
    """The token of decoded float32 logits [V] that nothing adjusts."""
    if params.temperature < 1e-5 or params.top_k == 1:
        return int(values.argmax())
    order = order_of(values, params)
    scaled = values * np.float32(1.0 / params.temperature)
    weights = np.exp((scaled - scaled.max()).astype(np.float64))
    weights = weights[order]
    count = len(order)
    if params.top_p < 1.0:
        count = int(np.searchsorted(np.cumsum(weights / weights.sum()), params.top_p, side="left")) + 1
    if params.min_p > 0.0:
        count = min(count, int((weights >= params.min_p).sum()))
    cumulative = np.cumsum(weights[: max(1, count)])
    place = int(np.searchsorted(cumulative, uniform(seed, index) * cumulative[-1], side="right"))
    return int(order[min(place, len(cumulative) - 1)])


def order_of(values: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Ids in the order in which their weights are added up; without any cut that of the vocabulary."""
    if not params.top_k and params.top_p >= 1.0 and not params.min_p:
        return np.arange(len(values))
    return np.argsort(-values, kind="stable")[: params.top_k or None]
