"""The moves between the states of a response: every pair, by hand."""

import itertools

import pytest

from server.stored_responses.record import IllegalMove, ResponseStatus, check_move

LEGAL = {
    ("queued", "in_progress"),
    ("queued", "failed"),
    ("queued", "cancelled"),
    ("in_progress", "completed"),
    ("in_progress", "incomplete"),
    ("in_progress", "failed"),
    ("in_progress", "cancelled"),
}


@pytest.mark.parametrize(("now", "to"), list(itertools.product(ResponseStatus, ResponseStatus)))
def test_every_move(now: ResponseStatus, to: ResponseStatus) -> None:
    if (now.value, to.value) in LEGAL:
        check_move(now, to)
    else:
        with pytest.raises(IllegalMove, match=f"a response that is {now} cannot become {to}"):
            check_move(now, to)
