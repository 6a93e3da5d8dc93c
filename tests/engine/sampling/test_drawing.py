"""Drawing from rows as graphs store them: the same tokens as the plain order, whatever the type and the shape."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.bundle.tensors import Encoding
from engine.request import SamplingParams
from engine.runtime.interface import FLOAT32, Logits
from engine.sampling import drawing
from engine.sampling.drawing import CodedRow, top_and_others, top_ids
from engine.sampling.sampler import RowContext, SampledToken, sample
from tests.engine.sampling.plain_order import order_of, plain_token

ENCODINGS = {
    "u16": Encoding("uint16", 0.0007, 30_000),
    "i16": Encoding("int16", 0.0011, -7),
    "u8": Encoding("uint8", 0.11, 128),
    "f32": Encoding("float32"),
    "f16": Encoding("float16"),
}
SHAPES = ("peaked", "flat", "equal", "two levels", "wide")


def values_of(shape: str, size: int, seed: int) -> np.ndarray:
    source = np.random.default_rng(seed)
    values = source.normal(size=size)
    if shape == "peaked":
        values[source.choice(size, min(size, 40), replace=False)] += 8
    elif shape == "flat":
        values *= 0.05
    elif shape == "equal":
        values[:] = 1.0
    elif shape == "two levels":
        values = np.where(values > 0.3, 2.0, -2.0)
    else:
        values *= 6
    return values


def tokens(logits: Logits, params: SamplingParams, seeds: range) -> tuple[list[int], list[int]]:
    """By the sampler and by the plain order, for the same row under several seeds."""
    rows = [RowContext(params, seed, (1,), (3, 4)) for seed in seeds]
    found = sample(logits, rows, [0] * len(rows))
    plain = [plain_token(logits.decoded()[0], params, seed, 2) for seed in seeds]
    return [token.token_id for token in found if isinstance(token, SampledToken)], plain


@given(
    shape=st.sampled_from(SHAPES),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    size=st.integers(2, 9000),
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    cuts=st.sampled_from([(0, 1.0, 0.0), (1, 1.0, 0.0), (40, 1.0, 0.0), (3000, 0.9, 0.0), (7, 0.5, 0.1), (0, 0.9, 0.0)])
    | st.sampled_from([(0, 0.999, 0.0), (0, 0.1, 0.0), (0, 1.0, 0.05), (0, 1.0, 0.9), (0, 0.95, 0.5), (0, 0.5, 1e-9)]),
)
@settings(max_examples=400, deadline=None)
def test_tokens_are_those_of_the_plain_order(
    shape: str, encoding: str, size: int, seed: int, temperature: float, cuts: tuple[int, float, float]
) -> None:
    how = ENCODINGS[encoding]
    logits = Logits(how.encode(values_of(shape, size, seed))[None], how)
    top_k, top_p, min_p = cuts
    # Equal tokens of which a whole number is the nucleus: whether one more belongs to it is the last digit of a sum.
    assume(shape != "equal" or top_p == 1.0 or abs(top_p * size - round(top_p * size)) > 1e-6)
    params = SamplingParams(9, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found, plain = tokens(logits, params, range(seed, seed + 8))
    # Sums of thousands of weights in another order differ in their last digit: rarely a draw lands on the neighbour.
    place_of = {int(token): place for place, token in enumerate(order_of(logits.decoded()[0], params))}
    assert all(
        abs(place_of[one] - place_of[other]) <= 1 for one, other in zip(found, plain, strict=True) if one != other
    )
    assert sum(one != other for one, other in zip(found, plain, strict=True)) <= 2


@pytest.mark.parametrize("encoding", ["u16", "f32"])
@pytest.mark.parametrize("cuts", [(1.0, 0.0), (0.9, 0.0), (0.3, 0.0), (1.0, 0.5), (0.97, 0.2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_wide_vocabulary_too(encoding: str, cuts: tuple[float, float], shape: str) -> None:
    how = ENCODINGS[encoding]
    logits = Logits(how.encode(values_of(shape, 128_256, 5))[None], how)
    params = SamplingParams(9, temperature=1.0, top_p=cuts[0], min_p=cuts[1])
    found, plain = tokens(logits, params, range(10))
    assert found == plain


@pytest.mark.parametrize("encoding", ["u16", "f32"])
def test_a_flat_row_is_not_sorted(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nucleus is nine tenths of the vocabulary; only the classes at its end and at the draw are sorted."""
    how, sorted_ids = ENCODINGS[encoding], []
    by_value = drawing.by_value

    def watched(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
        sorted_ids.append(len(ids))
        return by_value(values, ids)

    monkeypatch.setattr(drawing, "by_value", watched)
    logits = Logits(how.encode(values_of("flat", 128_256, 1))[None], how)
    found, plain = tokens(logits, SamplingParams(9, top_p=0.9), range(20))
    assert found == plain
    assert sorted_ids and max(sorted_ids) < 2_000


def test_frequencies_of_a_flat_row_are_the_weights() -> None:
    how = ENCODINGS["u16"]
    values = np.repeat([0.0, 1.0], 3000)
    logits = Logits(how.encode(values)[None], how)
    rows = [RowContext(SamplingParams(9, top_p=0.9), seed, (1,), ()) for seed in range(4000)]
    found = [token.token_id for token in sample(logits, rows, [0] * 4000) if isinstance(token, SampledToken)]
    likely = sum(token >= 3000 for token in found) / 4000
    assert abs(likely - np.e / (1 + np.e) / 0.9) < 0.03
    # What the nucleus leaves of the equally unlikely ones is those of the lowest ids.
    left = 0.9 * (1 + np.e) - np.e
    assert max(token for token in found if token < 3000) <= 3000 * left


@pytest.mark.parametrize("seed", range(10))
def test_a_nucleus_of_nearly_everything_ends_with_the_last_token(seed: int) -> None:
    """Rounding may leave no token where it ends."""
    values = np.random.default_rng(seed).normal(0, 0.3, 50).astype(np.float32)
    params = SamplingParams(9, top_p=float(np.nextafter(1.0, 0.0)))
    row = drawing._FlatRow(CodedRow(values, FLOAT32), params)
    assert [row.draw(0.0), row.draw(float(np.nextafter(1.0, 0.0)))] == [values.argmax(), values.argmin()]


def test_what_a_row_forbids_is_never_drawn() -> None:
    """Forbidden tokens lie in the last class of a flat row, beside very unlikely ones."""
    values = np.zeros((1, 6000), np.float32)
    forbidden = np.arange(6000) % 3 > 0
    for params in (SamplingParams(9), SamplingParams(9, top_p=0.99), SamplingParams(9, min_p=0.1)):
        rows = [RowContext(params, seed, (1,), (), forbidden) for seed in range(300)]
        found = sample(Logits.of(values), rows, [0] * 300)
        assert all(isinstance(token, SampledToken) and token.token_id % 3 == 0 for token in found)


@pytest.mark.parametrize("encoding", ["u16", "i16", "u8", "f32"])
def test_top_ids_of_codes_are_a_stable_sort(encoding: str) -> None:
    how = ENCODINGS[encoding]
    for size, count in ((31, 5), (32, 40), (5000, 1), (5000, 39), (5000, 300), (5001, 4999)):
        codes = how.encode(values_of("wide", size, size + count).round())
        expected = np.argsort(-codes.astype(np.float64), kind="stable")[:count]
        assert top_ids(codes, count).tolist() == expected.tolist()


def test_greedy_takes_integer_codes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decoded, with a grammar neither; the lowest id wins among equals."""
    how = ENCODINGS["u16"]
    codes = np.array([[5, 9, 9, 3], [7, 7, 0, 0]], np.uint16)
    forbidden = np.array([False, True, False, False])
    monkeypatch.setattr(Encoding, "decode", lambda *_: pytest.fail("decoded"))
    params = SamplingParams(9, temperature=0.0)
    rows = [RowContext(params, 1, (1,), (), mask) for mask in (None, forbidden, None)]
    found = sample(Logits(codes, how), rows, [0, 0, 1])
    assert [token.token_id for token in found if isinstance(token, SampledToken)] == [1, 2, 0]


def test_the_least_code_may_be_the_only_one_allowed() -> None:
    how = ENCODINGS["u16"]
    codes = np.array([[5, 0, 9, 0]], np.uint16)
    params = SamplingParams(9, temperature=0.0)
    rows = [RowContext(params, 1, (1,), (), np.array(mask)) for mask in ([1, 0, 1, 0], [1, 1, 1, 0])]
    rows = [RowContext(params, 1, (1,), (), row.forbidden.astype(bool)) for row in rows if row.forbidden is not None]
    found = sample(Logits(codes, how), rows, [0, 0])
    assert [token.token_id for token in found if isinstance(token, SampledToken)] == [1, 3]


def test_logits_of_a_row_are_relative_to_its_largest() -> None:
    row = CodedRow(np.array([30_000, 31_000, 0], np.uint16), ENCODINGS["u16"])
    assert row.relative(row.values, 31_000, 0.7) == pytest.approx(np.array([-1.0, 0.0, -31.0]), rel=1e-5)


@given(
    seed=st.integers(0, 500), share=st.sampled_from([0.001, 0.3, 0.9]), encoding=st.sampled_from(["u16", "f32", "u8"])
)
@settings(max_examples=80, deadline=None)
def test_under_a_grammar_tokens_are_those_of_the_plain_order(seed: int, share: float, encoding: str) -> None:
    """Few allowed tokens, many and most: by the plain order over logits of which the others are -infinity."""
    how = ENCODINGS[encoding]
    logits = Logits(how.encode(values_of("two levels" if seed % 2 else "peaked", 3000, seed))[None], how)
    forbidden = np.random.default_rng(seed).random(3000) > share
    forbidden[7] = False
    values = np.where(forbidden, -np.inf, logits.decoded()[0]).astype(np.float32)
    for params in (
        SamplingParams(9, temperature=0.0),
        SamplingParams(9, temperature=0.8),
        SamplingParams(9, temperature=0.8, top_k=20),
        SamplingParams(9, temperature=0.8, top_p=0.9),
        SamplingParams(9, temperature=0.8, min_p=0.1),
    ):
        (found,) = sample(logits, [RowContext(params, seed, (1,), (), forbidden)])
        assert isinstance(found, SampledToken) and found.token_id == plain_token(values, params, seed, 0)


@pytest.mark.parametrize("encoding", ["u16", "i16", "f32"])
def test_bounds_decide_a_peaked_row_without_the_sum_of_all_weights(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = ENCODINGS[encoding]
    values = np.random.default_rng(3).normal(scale=1.5, size=40_003)
    values[17 + np.arange(12) * 3000] = 15.0 - np.log(np.arange(1, 13))
    logits = Logits(how.encode(values)[None], how)
    params = SamplingParams(9, temperature=0.7, top_p=0.8)
    expected = [plain_token(logits.decoded()[0], params, seed, 2) for seed in range(64)]
    monkeypatch.setattr(CodedRow, "run_sums", lambda *_: pytest.fail("summed"))
    found = sample(logits, [RowContext(params, seed, (1,), (3, 4)) for seed in range(64)], [0] * 64)
    assert [token.token_id for token in found if isinstance(token, SampledToken)] == expected
    assert len(set(expected)) > 2


@given(st.integers(0, 10_000), st.integers(2, 600), st.sampled_from([0.3, 1.0, 3.0]), st.sampled_from([1, 4, 600]))
@settings(max_examples=100, deadline=None)
def test_no_row_weighs_more_than_its_bound(seed: int, size: int, temperature: float, count: int) -> None:
    how = ENCODINGS["u16"]
    row = CodedRow(how.encode(np.random.default_rng(seed).normal(scale=3, size=size)), how)
    ids, others = top_and_others(row.values, count)
    weights = np.exp((how.decode(row.values) - how.decode(row.values).max()).astype(np.float64) / temperature)
    assert others.max() <= row.values[ids[-1]]
    beyond = np.delete(weights, ids).sum()
    assert beyond <= row.most_beyond(others, row.values[ids[0]], temperature) * (1 + 1e-4)


@pytest.mark.parametrize(("weights", "place"), [([1.0, 3.0], 1), ([1.0, 3.0, 0.0], 1), ([4.0, 0.0, 0.0], 0)])
def test_rounding_up_to_the_whole_weight_draws_nothing_of_weight_0(weights: list[float], place: int) -> None:
    assert drawing._place(np.array(weights), 1.0) == place
