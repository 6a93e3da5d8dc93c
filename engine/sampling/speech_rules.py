"""Which tokens may come next in a transcript, as Whisper was trained to write it (Radford et al. 2022, s. 2.3).

Segments begin and end with a time: times come in pairs, but for the first and the last, and never go back. Where all
times together are likelier than each other token, a time is written.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.request import SpeechRules

Float32 = NDArray[np.float32]


def forbid(values: Float32, completion: Sequence[int], rules: SpeechRules) -> None:
    """Give -infinity to the logits [V] that must not be chosen behind `completion`, in place."""
    values[list(rules.suppressed)] = -np.inf
    if not completion:
        values[list(rules.first)] = -np.inf
    values[rules.first_time - 1] = -np.inf  # what says that there are no times
    if not rules.times:
        values[rules.first_time :] = -np.inf
        return
    _keep_order(values, completion, rules)
    _prefer_times(values, rules)


def _keep_order(values: Float32, completion: Sequence[int], rules: SpeechRules) -> None:
    first = rules.first_time
    if not completion:
        values[:first] = -np.inf
        values[first + rules.latest_start + 1 :] = -np.inf
        return
    is_time = completion[-1] >= first
    was_time = len(completion) < 2 or completion[-2] >= first
    if is_time and was_time:  # a segment has begun
        values[first:] = -np.inf
    elif is_time:  # a segment has ended: another one begins, or the text ends
        values[: rules.end] = -np.inf
    last = next((token for token in reversed(completion) if token >= first), None)
    if last is not None:  # a segment is never empty, but the next one may begin where it has ended
        values[first : last if is_time and not was_time else last + 1] = -np.inf


def _prefer_times(values: Float32, rules: SpeechRules) -> None:
    times, others = values[rules.first_time :], values[: rules.first_time]
    peak, best = float(times.max(initial=-np.inf)), float(others.max(initial=-np.inf))
    if not np.isfinite(peak):
        return
    together = peak + float(np.log(np.exp(times - np.float32(peak)).sum(dtype=np.float64)))
    if together > best:
        others[:] = -np.inf
