"""The sampler against transformers' logits processors, against exact arithmetic, and against itself in a batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.request import SamplingParams
from engine.runtime.interface import Logits
from engine.sampling.drawing import nucleus, top_ids
from engine.sampling.sampler import BadLogits, RowContext, SampledToken, sample, uniform

RNG = np.random.default_rng(3)
SPLITMIX = [0.5079605879681605, 0.17601256256594233, 0.2357696609793668, 0.5315233567015305]
PLAIN_DRAWS = [193, 65, 178, 198, 139, 213, 297, 183]
NUCLEUS_DRAWS = [351, 89, 267, 272, 20, 35, 218, 109]


def row(
    seed: int = 1, prompt: tuple[int, ...] = (1,), completion: tuple[int, ...] = (), **params: object
) -> RowContext:
    return RowContext(SamplingParams(max_tokens=10, **params), seed, prompt, completion)  # type: ignore[arg-type]


def choose(logits: np.ndarray, *rows: RowContext) -> list[int]:
    picks = sample(Logits.of(np.asarray(logits, np.float32)), rows)
    return [pick.token_id for pick in picks if isinstance(pick, SampledToken)]


def drawn(logits: np.ndarray, count: int, **params: object) -> np.ndarray:
    """Frequencies of `count` draws."""
    rows = [row(seed=seed, **params) for seed in range(count)]
    tokens = choose(np.tile(logits, (count, 1)), *rows)
    return np.bincount(tokens, minlength=len(logits)) / count


def test_temperature_zero_is_argmax_and_lowest_id_wins_ties() -> None:
    assert choose(np.array([[0.0, 5.0, 5.0, 1.0]]), row(temperature=0.0)) == [1]


def test_top_k_one_is_greedy() -> None:
    logits = RNG.normal(size=(1, 100))
    assert choose(logits, row(top_k=1, temperature=2.0)) == [int(logits.argmax())]


@pytest.mark.parametrize(
    ("params", "warper"),
    [
        ({"top_k": 5}, TopKLogitsWarper(5)),
        ({"top_p": 0.7}, TopPLogitsWarper(0.7)),
        ({"top_p": 0.05}, TopPLogitsWarper(0.05)),
        ({"min_p": 0.2}, MinPLogitsWarper(0.2)),
    ],
)
def test_support_and_frequencies_are_those_of_transformers(params: dict[str, float], warper: object) -> None:
    logits = RNG.normal(size=40).astype(np.float32) * 2
    kept = warper(torch.tensor([[0]]), torch.tensor(logits)[None])  # type: ignore[operator]
    expected = torch.softmax(kept[0], -1).numpy()
    measured = drawn(logits, 4000, **params)
    assert set(np.flatnonzero(measured)) <= set(np.flatnonzero(expected))
    assert np.abs(measured - expected).max() < 0.04


def test_combined_order_temperature_then_k_then_p() -> None:
    logits = np.random.default_rng(9).normal(size=60).astype(np.float32) * 0.6
    steps = {"t": lambda x: x / 0.5, "k": lambda x: TopKLogitsWarper(10)(None, x), "p": TopPLogitsWarper(0.8)}

    def shares(order: str) -> np.ndarray:
        found = torch.tensor(logits)[None]
        for name in order:
            found = steps[name](None, found) if name == "p" else steps[name](found)  # type: ignore[operator]
        return torch.softmax(found[0], -1).numpy()

    expected = shares("tkp")
    assert 3 < np.count_nonzero(expected) < 10
    for other in ("tpk", "kpt", "ptk", "pkt"):  # top-k and temperature may change places
        assert set(np.flatnonzero(shares(other))) != set(np.flatnonzero(expected))
    measured = drawn(logits, 3000, temperature=0.5, top_k=10, top_p=0.8)
    assert set(np.flatnonzero(measured)) == set(np.flatnonzero(expected))
    assert np.abs(measured - expected).max() < 0.04


PENALISED = ((3, 4, 5), (4, 7))  # prompt, completion


@pytest.mark.parametrize("penalty", [0.5, 0.9, 1.1, 1.7, 5.0])
@pytest.mark.parametrize("rival", [-2.0, -0.9, 0.3, 1.1, 2.0])
def test_repetition_penalty_is_transformers(penalty: float, rival: float) -> None:
    """Seen tokens, above zero and below, against one that was not seen: every pair of them in turn decides."""
    prompt, completion = PENALISED
    for seen in (3, 4, 5, 7):
        for value in (-1.5, -0.5, 0.5, 1.5):
            logits = np.full((1, 30), -50.0, np.float32)
            logits[0, [seen, 11]] = value, rival
            processed = RepetitionPenaltyLogitsProcessor(penalty)(
                torch.tensor([[*prompt, *completion]]), torch.tensor(logits)
            )
            picked = choose(
                logits, row(prompt=prompt, completion=completion, temperature=0.0, repetition_penalty=penalty)
            )
            assert picked == [int(processed.argmax())]


def test_repetition_penalty_changes_the_shares_of_what_was_seen_once() -> None:
    """Frequencies, so that the size of the penalty counts and not only which token is the largest."""
    logits = np.array([0.5, 0.1, -0.3, 2.0, -1.0, 1.5, 0.9, 2.2, 0.2, -0.8, 0.4, 1.0], np.float32)
    prompt, completion = PENALISED
    processed = RepetitionPenaltyLogitsProcessor(2.0)(
        torch.tensor([[*prompt, *completion]]), torch.tensor(logits)[None]
    )
    measured = drawn(logits, 4000, prompt=prompt, completion=completion, repetition_penalty=2.0)
    assert np.abs(measured - torch.softmax(processed[0], -1).numpy()).max() < 0.04
    assert np.abs(measured - torch.softmax(torch.tensor(logits), -1).numpy()).max() > 0.04


def test_frequency_and_presence_count_the_completion_only() -> None:
    logits = np.array([[3.0, 2.9, 2.0, 0.0]], np.float32)
    assert choose(logits, row(prompt=(0, 0), temperature=0.0, frequency_penalty=1.0)) == [0]
    assert choose(logits, row(completion=(0, 1, 1), temperature=0.0, presence_penalty=1.0)) == [0]
    assert choose(logits, row(completion=(0, 0, 1), temperature=0.0, frequency_penalty=0.5)) == [1]
    assert choose(logits, row(completion=(0, 0, 1, 1), temperature=0.0, frequency_penalty=0.6)) == [2]


def test_logit_bias_and_min_tokens() -> None:
    logits = np.array([[3.0, 2.0, 1.0]], np.float32)
    assert choose(logits, row(temperature=0.0, logit_bias=((2, 100.0),))) == [2]
    assert choose(logits, row(temperature=0.0, stop_token_ids=(0,), min_tokens=2, completion=(5,))) == [1]
    assert choose(logits, row(temperature=0.0, stop_token_ids=(0,), min_tokens=2, completion=(5, 5))) == [0]
    assert choose(logits, row(temperature=0.0, ignored_end_ids=(0,), min_tokens=2, completion=(5,))) == [1]
    assert choose(logits, row(temperature=0.0, ignored_end_ids=(0,), min_tokens=2, completion=(5, 5))) == [0]


def test_logprobs_are_those_of_the_model() -> None:
    logits = RNG.normal(size=(1, 500)).astype(np.float32)
    reference = torch.log_softmax(torch.tensor(logits[0]), -1)
    (pick,) = sample(Logits.of(logits), [row(temperature=0.3, logprobs=4, logit_bias=((9, 50.0),))])
    assert isinstance(pick, SampledToken) and pick.logprob is not None
    assert pick.logprob.logprob == pytest.approx(float(reference[pick.token_id]), abs=1e-5)
    values, ids = reference.topk(4)
    assert [i for i, _ in pick.logprob.top] == ids.tolist()
    assert [v for _, v in pick.logprob.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_bad_logits_hurt_only_their_own_row() -> None:
    logits = np.array([[1.0, 2.0], [np.nan, np.nan], [5.0, 0.0]], np.float32)
    good, bad, other = sample(Logits.of(logits), [row(temperature=0.0)] * 3)
    assert isinstance(good, SampledToken) and isinstance(other, SampledToken) and isinstance(bad, BadLogits)


@given(st.integers(1, 3000), st.integers(1, 400), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_top_ids_is_a_stable_sort(size: int, count: int, seed: int, ties: bool) -> None:
    values = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    values = np.round(values) if ties else values
    assert top_ids(values, count).tolist() == np.argsort(-values, kind="stable")[:count].tolist()


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 1, 7, 50]),
        "top_p": st.sampled_from([1.0, 0.9, 0.2]),
        "min_p": st.sampled_from([0.0, 0.1]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "seed": st.integers(0, 2**63 - 1),
    }
)


@given(st.lists(PARAMS, min_size=2, max_size=6), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_row_is_the_same_alone_and_in_a_batch(params: list[dict[str, float]], salt: int) -> None:
    logits = np.random.default_rng(salt).normal(size=(len(params), 2048)).astype(np.float32) * 3
    rows = [row(completion=(1, 2, 3), **{**p, "seed": int(p["seed"])}) for p in params]
    together = choose(logits, *rows)
    assert together == [choose(logits[i : i + 1], rows[i])[0] for i in range(len(rows))]


def test_uniform_is_uniform_and_depends_on_both_numbers() -> None:
    numbers = np.array([uniform(seed, index) for seed in range(100) for index in range(100)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.abs(np.histogram(numbers, 10, (0, 1))[0] / 10000 - 0.1).max() < 0.01
    assert len(set(numbers.tolist())) == 10000
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("temperature", [1e-44, 1e-30, 1e-6, 1e-4])
def test_tiny_temperatures_are_nearly_greedy(temperature: float) -> None:
    logits = RNG.normal(size=(1, 300)).astype(np.float32)
    assert choose(logits, row(temperature=temperature, top_p=0.9)) == [int(logits.argmax())]


def test_a_seed_gives_the_same_numbers_in_every_version() -> None:
    """A stream that goes on under a newer server, or on another machine, is the same stream."""
    assert [uniform(seed, index) for seed, index in ((0, 0), (1, 0), (1, 1), (2**63 - 1, 12345))] == SPLITMIX
    logits = (np.arange(400, dtype=np.float32) * 7919 % 400 / 50)[None]
    assert [choose(logits, row(seed=seed))[0] for seed in range(8)] == PLAIN_DRAWS
    assert [choose(logits, row(seed=seed, top_p=0.9))[0] for seed in range(8)] == NUCLEUS_DRAWS


def test_min_p_keeps_all_that_are_likely_enough_however_many() -> None:
    logits = np.concatenate([np.full(900, 1.0), np.full(900, -9.0)]).astype(np.float32)
    rows = [row(seed=seed, min_p=0.5) for seed in range(400)]
    tokens = choose(np.tile(logits, (len(rows), 1)), *rows)
    assert max(tokens) < 900 and len({token // 100 for token in tokens}) == 9


def test_min_tokens_hold_under_a_grammar_that_allows_more_than_the_stop() -> None:
    params = SamplingParams(max_tokens=10, temperature=0.0, stop_token_ids=(0,), min_tokens=2)
    logits = np.array([[9.0, 1.0, 2.0]], np.float32)

    def under(*allowed: int) -> list[int]:
        forbidden = np.array([token not in allowed for token in range(3)])
        return choose(logits, RowContext(params, 1, (1,), (), forbidden))

    assert under(0, 1) == [1]
    assert under(0, 1, 2) == [2]
    assert under(0) == [0]  # nothing else may follow


def test_without_a_grammar_a_stop_token_is_never_the_way_out() -> None:
    params = SamplingParams(max_tokens=10, temperature=0.0, stop_token_ids=(0,), min_tokens=2)
    (pick,) = sample(Logits.of(np.array([[9.0, -np.inf]], np.float32)), [RowContext(params, 1, (1,), ())])
    assert isinstance(pick, BadLogits)


def test_presence_counts_a_token_once_and_frequency_each_time() -> None:
    logits = np.array([[3.0, 2.9, 2.0, 0.0]], np.float32)
    thrice = (0, 0, 0, 1)
    assert choose(logits, row(completion=thrice, temperature=0.0, presence_penalty=0.9)) == [0]
    assert choose(logits, row(completion=thrice, temperature=0.0, presence_penalty=1.2)) == [2]
    assert choose(logits, row(completion=thrice, temperature=0.0, frequency_penalty=0.2)) == [1]
    assert choose(logits, row(completion=(0,), temperature=0.0, presence_penalty=0.5)) == [1]
    assert choose(logits, row(completion=(3,), temperature=0.0, presence_penalty=-3.5)) == [3]


def test_without_top_p_nothing_is_cut_however_unlikely() -> None:
    weights = np.array([0.5, 0.5, 1e-20])
    assert [nucleus(weights, top_p) for top_p in (1.0, 0.9, 0.5, 0.4, 0.0)] == [3, 2, 1, 1, 1]
