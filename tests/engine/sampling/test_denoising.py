"""One masked row: what is chosen, how sure it is said to be, and what never comes out."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.core.plan import Segment
from engine.core.rows import block_segment
from engine.core.scheduler import Scheduler
from engine.request import Denoising, Request, SamplingParams
from engine.runtime.interface import Logits
from engine.sampling.sample_step import certainty, predict, predict_row
from tests.engine.worker.simulation import free, simulate

SETTINGS = Denoising(4, 3, 4)
ROW = np.array([1.0, 2.0, 0.5, 9.0, 2.0, -1.0], np.float32)


def chosen(number: float = 0.0, index: int = 0, row: np.ndarray = ROW, **fields: object) -> int:
    params = SamplingParams(**{"max_tokens": 9, "temperature": 0.0, **fields})  # type: ignore[arg-type]
    prediction = predict_row(np.array(row), params, SETTINGS, index, number)
    assert prediction is not None
    return prediction.token


def test_the_likeliest_that_is_not_the_mask_lowest_id_first() -> None:
    assert chosen() == 1
    assert chosen(logit_bias=((3, 100.0),)) == 1
    assert chosen(logit_bias=((5, 50.0),)) == 5
    assert chosen(stop_token_ids=(1, 4), min_tokens=3, index=2) == 0
    assert chosen(stop_token_ids=(1,), ignored_end_ids=(4,), min_tokens=3, index=2) == 0
    assert chosen(stop_token_ids=(1, 4), min_tokens=3, index=3) == 1


def test_rows_without_a_number_are_nobodys_choice() -> None:
    params = SamplingParams(max_tokens=9)
    for row in (np.full(6, np.nan, np.float32), np.array([-np.inf] * 3 + [1.0] + [-np.inf] * 2, np.float32)):
        assert predict_row(row, params, SETTINGS, 0, 0.5) is None


@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40), st.floats(0.1, 2.0), st.integers(0, 99))
def test_confidence_and_entropy_are_those_of_the_distribution(row: list[float], temperature: float, place: int) -> None:
    values = np.array([*row, -np.inf], np.float32)
    token = place % len(row)
    shares = torch.softmax(torch.tensor(values).double() / temperature, -1)
    confidence, entropy = certainty(values, token, temperature)
    assert confidence == pytest.approx(float(shares[token]), rel=1e-4, abs=1e-7)
    assert entropy == pytest.approx(float(torch.special.entr(shares).sum()), rel=1e-3, abs=1e-4)


def test_draws_follow_the_distribution_and_its_cuts() -> None:
    """Over a grid of numbers every token comes as often as it is probable: without the mask, cuts as in the sampler."""
    numbers = (np.arange(2000) + 0.5) / 2000
    plain = np.array(ROW)
    plain[3] = -np.inf
    shares = torch.softmax(torch.tensor(plain).double() / 0.8, -1).numpy()
    counts = Counter(chosen(number, temperature=0.8) for number in numbers)
    for token, share in enumerate(shares):
        assert counts[token] / 2000 == pytest.approx(share, abs=2e-3)
    assert {chosen(number, temperature=0.8, top_k=2) for number in numbers} == {1, 4}
    assert {chosen(number, temperature=0.8, min_p=0.2) for number in numbers} == {0, 1, 4}


def test_confidence_is_that_of_the_temperature_and_of_no_cut() -> None:
    """Else top_k 1 would make every token a certainty."""
    params = SamplingParams(max_tokens=9, temperature=0.5, top_k=1)
    cut = predict_row(np.array(ROW), params, SETTINGS, 0, 0.3)
    greedy = predict_row(np.array(ROW), SamplingParams(max_tokens=9, temperature=0.0), SETTINGS, 0, 0.3)
    assert cut is not None and greedy is not None and cut == greedy
    assert cut.confidence == pytest.approx(np.exp(2) / sum(np.exp([1, 2, 0.5, 2, -1])), rel=1e-5)
    warm = predict_row(np.array(ROW), SamplingParams(max_tokens=9, temperature=0.5, top_k=2), SETTINGS, 0, 0.3)
    assert warm is not None
    assert warm.confidence == pytest.approx(np.exp(4) / sum(np.exp([2, 4, 1, 4, -2])), rel=1e-5)


def test_log_probabilities_are_the_models_without_its_mask_token() -> None:
    params = SamplingParams(max_tokens=9, temperature=0.0, logprobs=6, logit_bias=((5, 50.0),))
    prediction = predict_row(np.array(ROW), params, SETTINGS, 0, 0.0)
    assert prediction is not None and prediction.logprob is not None
    total = np.log(sum(np.exp([1, 2, 0.5, 2, -1])))
    assert prediction.logprob.token_id == 5
    assert prediction.logprob.logprob == pytest.approx(-1 - total, rel=1e-5)
    assert prediction.logprob.top[0] == (1, pytest.approx(2 - total, rel=1e-5))


def begun(scheduler: Scheduler, name: str, seed: int, step: int) -> Segment:
    params = SamplingParams(max_tokens=9, temperature=1.0, denoising=SETTINGS)
    sequence = scheduler.add(Request(name, (1, 2), params), (), seed, 0.0)
    assert sequence.active_block is not None
    sequence.active_block.step = step
    return block_segment(sequence, 4, 16)


def test_random_numbers_go_by_seed_token_and_step_of_the_block() -> None:
    scheduler = simulate(free(16, 64)).scheduler
    scheduler.shapes = type(scheduler.shapes)((), 16, 64, unit=4)
    flat = Logits.of(np.zeros((2, 5000), np.float32))
    found = {}
    for seed in (1, 2):
        for step in (0, 1):
            segment = begun(scheduler, f"{seed}-{step}", seed, step)
            assert segment.masked == (2, 3)
            said = predict(segment, flat, 0)
            found[seed, step] = tuple(prediction.token for prediction in said)
    again = predict(begun(scheduler, "again", 1, 1), flat, 0)
    assert tuple(prediction.token for prediction in again) == found[1, 1]
    assert len({token for tokens in found.values() for token in tokens}) == 8
