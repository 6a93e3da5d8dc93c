"""Blame: the poisonous request is found, the others live. Against a worker that dies whenever it meets the poison."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from engine.client.recovery import FORGIVEN_AFTER_TOKENS, MOST_DEATHS, PendingRequest, charge_death, next_to_send
from engine.request import Request, SamplingParams


def pendings(count: int) -> dict[str, PendingRequest]:
    """Fresh requests by id."""
    return {str(i): PendingRequest(Request(str(i), (1,), SamplingParams(1))) for i in range(count)}


def send(open_flights: dict[str, PendingRequest]) -> list[str]:
    """Send what may be sent; their ids."""
    sent = next_to_send(open_flights.values())
    for pending in sent:
        pending.is_sent = True
    return [pending.request.id for pending in sent]


@given(st.integers(1, 12), st.sets(st.integers(0, 11)), st.randoms())
def test_only_the_poisonous_requests_fail(count: int, poison: set[int], random: Random) -> None:
    open_flights = pendings(count)
    poisonous = {str(i) for i in poison if i < count}
    failed, deaths, passes = set(), 0, 0
    while open_flights:
        send(open_flights)
        aboard = [flight_id for flight_id, pending in open_flights.items() if pending.is_sent]
        if poisonous & set(aboard):
            for flight_id in aboard:  # some others may get a token out before the worker dies
                open_flights[flight_id].has_progressed |= flight_id not in poisonous and random.random() < 0.5
            deaths += 1
            for pending in charge_death(open_flights.values()):
                failed.add(pending.request.id)
                del open_flights[pending.request.id]
            continue
        passes += 1
        for flight_id in aboard:
            open_flights[flight_id].has_progressed = True
            if random.random() < 0.1 or passes > 100:
                del open_flights[flight_id]
    assert failed == poisonous
    assert deaths == (MOST_DEATHS + len(poisonous) - 1 if poisonous else 0)


def test_three_deaths_fail_a_request_even_if_it_moves_on_between_them() -> None:
    open_flights = pendings(1)
    for _ in range(MOST_DEATHS - 1):
        assert send(open_flights) == ["0"]
        open_flights["0"].has_progressed = True
        assert charge_death(open_flights.values()) == []
    send(open_flights)
    open_flights["0"].has_progressed = True
    assert charge_death(open_flights.values()) == [open_flights["0"]]


def test_who_was_not_aboard_is_not_to_blame() -> None:
    open_flights = pendings(2)
    open_flights["0"].is_sent = True
    charge_death(open_flights.values())
    assert [pending.deaths for pending in open_flights.values()] == [1, 0]


def test_suspects_are_tried_one_at_a_time_before_fresh_requests() -> None:
    open_flights = pendings(4)
    for flight_id in "012":
        open_flights[flight_id].deaths = MOST_DEATHS - 1
    assert send(open_flights) == ["0"]
    assert send(open_flights) == []
    open_flights["0"].has_progressed = True
    assert send(open_flights) == ["1"]
    del open_flights["1"]
    assert send(open_flights) == ["2"]
    open_flights["2"].has_progressed = True
    assert send(open_flights) == ["3"]


def test_a_long_healthy_stream_is_not_failed_by_the_poison_of_others() -> None:
    healthy = PendingRequest(Request("healthy", (1,), SamplingParams(10_000)))
    for _ in range(10):
        healthy.is_sent = True
        healthy.progress(range(FORGIVEN_AFTER_TOKENS))
        assert charge_death([healthy]) == []
