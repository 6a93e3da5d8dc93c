"""Where an answer goes on in what was predicted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.speculation import LONGEST, continued_at

TEXT = (1, 2, 3, 4, 5, 1, 2, 9)


@pytest.mark.parametrize(
    ("completion", "behind", "found"),
    [
        ((), 0, 0),  # nothing is said yet
        ((1,), 0, 1),  # one token is enough where there is only one
        ((1, 2), 0, 2),
        ((1, 2), 3, 7),  # the nearest match from where it was
        ((5, 1, 2), 0, 7),  # the longest match counts
        ((7, 8, 3), 0, None),  # one token is not enough later
        ((7, 3, 4), 0, 4),  # it goes on behind a change
        ((2, 9), 0, None),  # nothing follows the end
        ((6,), 0, None),
    ],
)
def test_continuing(completion: tuple[int, ...], behind: int, found: int | None) -> None:
    assert continued_at(TEXT, completion, behind) == found


def test_an_empty_prediction_says_nothing() -> None:
    assert continued_at((), (), 0) is None
    assert continued_at((), (1, 2), 0) is None


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=9), st.integers(0, 20))
def test_the_end_of_the_answer_is_before_the_place(prediction: list[int], answer: list[int], behind: int) -> None:
    found = continued_at(prediction, answer, behind)
    fitting = {
        (size, end)
        for end in range(1, len(prediction))
        for size in range(min(2, len(answer)), LONGEST + 1)
        if size and size <= min(end, len(answer)) and prediction[end - size : end] == answer[-size:]
    }
    if found is None:
        assert not fitting or not answer
    elif answer:
        longest = max(size for size, _ in fitting)
        assert (longest, found) in fitting
        assert found >= behind or all(end < behind for size, end in fitting if size == longest)
