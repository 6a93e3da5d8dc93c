"""How many guesses a step takes, against prices that can be computed by hand."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.speculation import (
    PRICE_MARGIN,
    GuessKind,
    Offer,
    best_rows,
    draft_length,
    least_rate,
    take,
    worths,
)

FREE: Callable[[int], float] = lambda rows: 10.0  # noqa: E731 (padding)


def lone_decode(rows: int) -> float:
    """One row takes 20 ms, four take 38."""
    return 20.0 + 6.0 * rows


def busy(rows: int) -> float:
    """Thirty-two rows for others take 120 ms, each further one 3.5 ms."""
    return 120.0 + 3.5 * rows


def offer(rate: float, count: int = 4, name: str = "a") -> Offer:
    return Offer(name, GuessKind.LOOKUP, tuple(range(count)), rate)


def test_padding_is_filled() -> None:
    assert take([offer(0.5, 3), offer(0.4, 3, "b")], useful=2, most=5, price=FREE) == [3, 2]
    assert take([offer(0.5, 3)], useful=1, most=0, price=FREE) == [0]


def test_guesses_that_are_hardly_ever_right_are_not_worth_a_sample() -> None:
    assert take([offer(0.1, 4)], useful=1, most=4, price=FREE) == [1]
    assert take([offer(0.01, 4)], useful=1, most=4, price=FREE) == [0]


@pytest.mark.parametrize(("rate", "taken"), [(0.95, 4), (0.8, 2), (0.6, 1), (0.5, 1), (0.3, 0), (0.1, 0)])
def test_a_lone_decode_takes_those_that_are_right_often_enough(rate: float, taken: int) -> None:
    """At 0.8 for example: two give 2.44 tokens in 35.6 ms, a third would make it 2.952 in 43.4."""
    assert take([offer(rate)], useful=1, most=4, price=lone_decode) == [taken]


def test_where_rows_are_worth_more_to_others_fewer_guesses_are_taken() -> None:
    """32 rows in 120 ms are a token in 3.75 ms: a guess in 3.5 ms, with the margin, is never sure enough for that."""
    assert take([offer(0.9)], useful=32, most=4, price=busy) == [0]
    assert take([offer(0.98)], useful=32, most=4, price=lambda rows: 120.0 + 2.0 * rows) == [4]
    assert take([offer(0.8)], useful=32, most=4, price=lambda rows: 120.0 + 2.0 * rows) == [1]


def test_the_likeliest_guesses_come_first_across_sequences() -> None:
    offers = [offer(0.5, 4, "a"), offer(0.9, 4, "b"), offer(0.7, 4, "c")]
    assert take(offers, useful=3, most=6, price=FREE) == [1, 4, 1]


def test_a_step_in_the_price_is_crossed_when_what_is_behind_it_pays() -> None:
    def steps(rows: int) -> float:
        return 20.0 if rows == 0 else 30.0

    assert take([offer(0.4, 1)], useful=1, most=8, price=steps) == [0]
    assert take([offer(0.8, 8)], useful=1, most=8, price=steps) == [8]


@given(
    st.lists(st.tuples(st.floats(0.05, 1.0), st.integers(1, 6)), max_size=5),
    st.integers(1, 40),
    st.integers(0, 20),
    st.floats(0.0, 10.0),
)
def test_no_other_number_of_rows_gives_more_tokens_per_millisecond(
    given_offers: list[tuple[float, int]], useful: int, most: int, row_ms: float
) -> None:
    offers = [offer(rate, count, str(index)) for index, (rate, count) in enumerate(given_offers)]
    counts = take(offers, useful, most, lambda rows: 10.0 + row_ms * rows)
    assert sum(counts) <= most

    def value(taken: list[int]) -> float:
        tokens = useful + sum(sum(worths(o.rate, count)) for o, count in zip(offers, taken, strict=True))
        return tokens / (10.0 + PRICE_MARGIN * row_ms * sum(taken))

    for index, count in enumerate(counts):
        for other in (count - 1, count + 1):
            if 0 <= other <= len(worths(offers[index].rate, len(offers[index].tokens))):
                changed = [*counts[:index], other, *counts[index + 1 :]]
                if sum(changed) <= most:
                    assert value(changed) <= value(counts) + 1e-9


def test_what_was_spent_before_counts() -> None:
    assert best_rows([0.9, 0.81], 1, 2, lone_decode, 0.0)[0] == 2
    rows, value = best_rows([0.9, 0.81], 1, 2, FREE, 90.0)
    assert (rows, value) == (2, pytest.approx(2.71 / 100.0))


Draft = tuple[tuple[tuple[float, int], ...], Callable[[int], float]]


def draft(rate: float, each_ms: float, sequences: int = 1) -> Draft:
    return ((rate, 8),) * sequences, lambda count: each_ms * count


def length(price: Draft, instead: tuple[Offer, ...] = (), useful: int = 1) -> int:
    return draft_length(*price, instead, (), useful, 64, lone_decode)


def test_a_draft_proposes_as_far_as_it_is_right_and_its_own_time_counts() -> None:
    assert length(draft(0.95, 0.1)) == 6
    assert 0 < length(draft(0.8, 2.0)) < length(draft(0.95, 2.0)) < 6
    assert length(draft(0.5, 4.0)) == 0
    assert length(draft(0.9, 30.0)) == 0


def test_a_draft_is_left_alone_where_something_free_is_as_good() -> None:
    assert length(draft(0.9, 3.0)) > 0
    assert length(draft(0.9, 3.0), instead=(offer(0.9, 8),)) == 0


def test_a_draft_stops_paying_where_many_share_a_step() -> None:
    """Alone 1.8 tokens in 66.1 ms are better than one in 40; with eight 14.4 in 73.8 ms are worse than eight in 40."""
    price: Callable[[int], float] = lambda rows: 40.0 + rows  # noqa: E731
    alone = draft_length(*draft(0.8, 25.0), (), (), 1, 64, price)
    together = draft_length(*draft(0.8, 25.0, 8), (), (), 8, 64, price)
    assert (alone, together) == (1, 0)


@given(st.floats(0.05, 1.0), st.integers(1, 40), st.integers(1, 20), st.floats(0.0, 10.0), st.floats(0.0, 30.0))
def test_below_the_least_rate_nothing_is_ever_taken(
    rate: float, useful: int, most: int, row_ms: float, step_ms: float
) -> None:
    """A row costs the same everywhere but for a step in front of the first."""

    def price(rows: int) -> float:
        return 10.0 + row_ms * rows + (step_ms if rows else 0.0)

    least = least_rate(useful, most, price)
    if rate <= least:
        assert take([offer(rate, most)], useful, most, price) == [0]
    assert least_rate(useful, 0, price) == 1.0


def test_padding_asks_for_no_rate() -> None:
    assert least_rate(useful=5, most=3, price=FREE) == 0.0
