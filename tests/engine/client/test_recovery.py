"""Charging deaths: a worker dies whenever it has a poisonous request; that one is found, the others live."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client.recovery import (
    FORGIVEN_AFTER_TOKENS,
    MOST_DEATHS,
    PendingRequest,
    charge_death,
    check_delivered,
    next_to_send,
)
from engine.errors import InvalidRequest
from engine.request import Delivered, FinishReason, Request, SamplingParams


def pendings(count: int) -> dict[str, PendingRequest]:
    """Fresh requests by id."""
    return {str(i): PendingRequest(Request(str(i), (1,), SamplingParams(1))) for i in range(count)}


def send(unfinished: dict[str, PendingRequest]) -> list[str]:
    """Send what may be sent; their ids."""
    sent = next_to_send(unfinished.values())
    for pending in sent:
        pending.is_sent = True
    return [pending.request.id for pending in sent]


@given(st.integers(1, 12), st.sets(st.integers(0, 11)), st.randoms())
def test_only_the_poisonous_requests_fail(count: int, poison: set[int], random: Random) -> None:
    unfinished = pendings(count)
    poisonous = {str(i) for i in poison if i < count}
    failed, deaths, steps = set(), 0, 0
    while unfinished:
        send(unfinished)
        sent_ids = [request_id for request_id, pending in unfinished.items() if pending.is_sent]
        if poisonous & set(sent_ids):
            for request_id in sent_ids:  # some others may get a token out before the worker dies
                unfinished[request_id].has_progressed |= request_id not in poisonous and random.random() < 0.5
            deaths += 1
            for pending in charge_death(unfinished.values()):
                failed.add(pending.request.id)
                del unfinished[pending.request.id]
            continue
        steps += 1
        for request_id in sent_ids:
            unfinished[request_id].has_progressed = True
            if random.random() < 0.1 or steps > 100:
                del unfinished[request_id]
    assert failed == poisonous
    assert deaths == (MOST_DEATHS + len(poisonous) - 1 if poisonous else 0)


def test_three_deaths_fail_a_request_even_if_it_moves_on_between_them() -> None:
    unfinished = pendings(1)
    for _ in range(MOST_DEATHS - 1):
        assert send(unfinished) == ["0"]
        unfinished["0"].has_progressed = True
        assert charge_death(unfinished.values()) == []
    send(unfinished)
    unfinished["0"].has_progressed = True
    assert charge_death(unfinished.values()) == [unfinished["0"]]


def test_a_request_that_was_not_sent_is_not_charged() -> None:
    unfinished = pendings(2)
    unfinished["0"].is_sent = True
    charge_death(unfinished.values())
    assert [pending.deaths for pending in unfinished.values()] == [1, 0]


def test_suspects_are_tried_one_at_a_time_before_fresh_requests() -> None:
    unfinished = pendings(4)
    for request_id in "012":
        unfinished[request_id].deaths = MOST_DEATHS - 1
    assert send(unfinished) == ["0"]
    assert send(unfinished) == []
    unfinished["0"].has_progressed = True
    assert send(unfinished) == ["1"]
    del unfinished["1"]
    assert send(unfinished) == ["2"]
    unfinished["2"].has_progressed = True
    assert send(unfinished) == ["3"]


def test_a_long_healthy_stream_is_not_failed_by_the_poison_of_others() -> None:
    healthy = PendingRequest(Request("healthy", (1,), SamplingParams(10_000)))
    for _ in range(10):
        healthy.is_sent = True
        healthy.progress(range(FORGIVEN_AFTER_TOKENS))
        assert charge_death([healthy]) == []


def test_only_what_an_answer_could_have_said_is_taken_as_delivered() -> None:
    check_delivered(Delivered(()), 3, 10)
    check_delivered(Delivered((9, 0)), 3, 10)
    check_delivered(Delivered((1, 2, 3), FinishReason.LENGTH), 3, 10)
    for wrong in (Delivered((1, 2, 3)), Delivered((1,) * 4, FinishReason.LENGTH), Delivered((10,))):
        with pytest.raises(InvalidRequest) as caught:
            check_delivered(wrong, 3, 10)
        assert caught.value.param == "resumption"
