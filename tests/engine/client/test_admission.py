"""Admission: bounds with numbers, and a wait that follows the recent rate."""

import pytest

from engine.client.admission import LONGEST_WAIT_S, SHORTEST_WAIT_S, AdmissionControl
from engine.errors import Busy, BusyReason


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_queue_is_bounded_and_a_place_is_free_again() -> None:
    admission = AdmissionControl(2, 0)
    admission.enter("a", 5)
    admission.enter("b", 5)
    with pytest.raises(Busy, match="2 requests are queued or running, the limit is 2") as refused:
        admission.enter("c", 5)
    assert refused.value.retry_after_s == SHORTEST_WAIT_S
    assert refused.value.reason is BusyReason.REQUESTS
    admission.leave("a", finished=False)
    admission.enter("c", 5)


def test_waiting_prompt_tokens_are_bounded_but_one_long_prompt_always_gets_in() -> None:
    admission = AdmissionControl(10, 100)
    admission.enter("long", 1000)
    with pytest.raises(
        Busy, match="1000 prompt tokens are waiting, this request has 1 and the limit is 100"
    ) as refused:
        admission.enter("b", 1)
    assert refused.value.reason is BusyReason.PROMPT_TOKENS
    admission.started("long")
    admission.started("long")
    admission.enter("b", 60)
    admission.enter("c", 40)
    with pytest.raises(Busy):
        admission.enter("d", 1)
    admission.leave("c", finished=True)
    admission.enter("d", 40)
    admission.leave("unknown", finished=False)


def test_how_many_more_fit_is_told_before_they_are_tokenised() -> None:
    admission = AdmissionControl(4, 0)
    admission.check_room(4)
    admission.check_room(5)  # alone it is refused for its size, not for the load
    for name in ("a", "b", "c"):
        admission.enter(name, 1)
    admission.check_room(1)
    told = "3 requests are queued or running and 2 more were asked for, the limit is 4"
    with pytest.raises(Busy, match=told) as refused:
        admission.check_room(2)
    assert refused.value.reason is BusyReason.REQUESTS


def test_the_wait_is_the_time_the_queue_needs_at_the_recent_rate() -> None:
    clock = Clock()
    admission = AdmissionControl(100, 0, clock)
    for i in range(40):
        admission.enter(str(i), 1)
    for i in range(10):
        clock.now += 2.0
        admission.leave(str(i), finished=True)
    clock.now = 20.0
    assert admission.expected_wait_s() == pytest.approx(30 / (10 / 18.0))
    clock.now = 1e6
    assert admission.expected_wait_s() == LONGEST_WAIT_S


def test_aborted_requests_do_not_count_as_progress() -> None:
    clock = Clock()
    admission = AdmissionControl(100, 0, clock)
    for i in range(10):
        admission.enter(str(i), 1)
        admission.leave(str(i), finished=False)
    assert admission.expected_wait_s() == SHORTEST_WAIT_S


def test_one_finish_is_no_rate_and_two_are() -> None:
    clock = Clock()
    admission = AdmissionControl(100, 0, clock)
    for i in range(12):
        admission.enter(str(i), 1)
    clock.now = 10.0
    admission.leave("0", finished=True)
    clock.now = 20.0
    assert admission.expected_wait_s() == SHORTEST_WAIT_S
    admission.leave("1", finished=True)
    assert admission.expected_wait_s() == pytest.approx(10 / (2 / 10.0))


def test_an_idle_hour_says_nothing_and_a_newcomer_forgets_nothing() -> None:
    clock = Clock()
    admission = AdmissionControl(100, 0, clock)
    for i in range(4):
        admission.enter(str(i), 1)
    for i in range(2):
        clock.now += 5.0
        admission.leave(str(i), finished=True)
    clock.now = 12.0
    admission.enter("newcomer", 1)
    assert admission.expected_wait_s() == pytest.approx(3 / (2 / 7.0))
    for name in ("2", "3", "newcomer"):
        admission.leave(name, finished=True)
    clock.now = 3600.0
    admission.enter("after an hour", 1)
    assert admission.expected_wait_s() == SHORTEST_WAIT_S


def test_the_shortest_wait_holds_where_requests_finish_faster() -> None:
    clock = Clock()
    admission = AdmissionControl(100, 0, clock)
    for i in range(5):
        admission.enter(str(i), 1)
    for i in range(4):
        admission.leave(str(i), finished=True)
    assert admission.expected_wait_s() == SHORTEST_WAIT_S
