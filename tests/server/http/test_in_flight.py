"""The requests in flight: counted, waited for, ended."""

import pytest

from engine.errors import Busy, BusyReason, HexserveError
from server.http.in_flight import InFlight


class Generating:
    """A request that notes what ended it."""

    def __init__(self) -> None:
        self.errors: list[HexserveError] = []

    def fail(self, error: HexserveError) -> None:
        self.errors.append(error)


async def test_requests_are_counted_in_and_out() -> None:
    in_flight = InFlight()
    first, second = Generating(), Generating()
    in_flight.enter(first)
    in_flight.enter(second)
    assert in_flight.count == 2
    assert not await in_flight.wait_empty(0)
    for request in (first, first, second):
        in_flight.leave(request)
    assert in_flight.count == 0
    assert await in_flight.wait_empty(0)


async def test_a_draining_server_lets_nothing_in_and_nothing_is_cut() -> None:
    in_flight = InFlight()
    running = Generating()
    in_flight.enter(running)
    in_flight.check_open()
    in_flight.draining = True
    with pytest.raises(Busy, match="shutting down") as refused:
        in_flight.check_open()
    assert refused.value.reason is BusyReason.SHUTTING_DOWN
    assert running.errors == []


async def test_the_end_reaches_every_request_and_those_that_come_late() -> None:
    in_flight = InFlight()
    running, late = Generating(), Generating()
    in_flight.enter(running)
    in_flight.end()
    in_flight.enter(late)
    with pytest.raises(Busy, match="shutting down"):
        in_flight.check_open()
    assert [str(error) for request in (running, late) for error in request.errors] == [str(Busy.shutting_down())] * 2
