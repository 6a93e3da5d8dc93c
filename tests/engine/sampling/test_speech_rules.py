"""The order of times in a transcript, against transformers' processor of the same rules."""

from types import SimpleNamespace

import numpy as np
import pytest

from engine.request import SpeechRules
from engine.sampling.sampler import forbid

VOCAB, END, NO_TIMES = 40, 20, 24
FIRST = NO_TIMES + 1
RULES = SpeechRules(suppressed=(7,), first=(3,), end=END, first_time=FIRST, times=True, latest_start=5)
CASES = [
    [],
    [FIRST + 2],
    [FIRST, 4],
    [FIRST, 4, 5, FIRST + 3],
    [FIRST, 4, FIRST + 3, FIRST + 3],
    [FIRST, 4, FIRST + 3, FIRST + 3, 9],
]


@pytest.mark.parametrize("completion", CASES)
def test_as_transformers(completion: list[int]) -> None:
    import torch
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    told = SimpleNamespace(
        no_timestamps_token_id=NO_TIMES, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=5
    )
    judge = WhisperTimeStampLogitsProcessor(told, begin_index=1)
    for seed in range(20):
        values = np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32) * 3
        values[7] = -np.inf
        values[3] = -np.inf if not completion else values[3]
        wanted = judge(torch.tensor([[0, *completion]]), torch.tensor(values[None])).numpy()[0]
        forbid(values, completion, RULES)
        assert np.array_equal(np.isfinite(values), np.isfinite(wanted))


def test_without_times() -> None:
    values = np.zeros(VOCAB, np.float32)
    forbid(values, [], SpeechRules((7,), (3,), END, FIRST, times=False))
    assert np.flatnonzero(np.isneginf(values)).tolist() == [3, 7, NO_TIMES, *range(FIRST, VOCAB)]
