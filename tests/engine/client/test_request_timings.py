"""The line about the last requests."""

from engine.client.token_stream import timings_line
from engine.request import RequestTimings


def test_means() -> None:
    """A request without guesses says nothing about acceptance."""
    first = RequestTimings(0.0, 100.0, 1000.0, 50, 0, 11, drafted_tokens=10, accepted_tokens=5)
    second = RequestTimings(0.0, 300.0, 1000.0, 100, 40, 21)
    assert timings_line([first, second]) == (
        "requests:2 prompt:200.0ms generate:1000.0ms tps:prompt=350.0 generate=15.0 rows/step=0.0 acceptance=0.50"
    )


def test_a_request_without_a_rate_is_left_out_of_it() -> None:
    cached, other = RequestTimings(0.0, 0.0, 0.0, 8, 8, 1), RequestTimings(0.0, 300.0, 1000.0, 100, 40, 21)
    assert timings_line([cached, other]) == (
        "requests:2 prompt:150.0ms generate:500.0ms tps:prompt=200.0 generate=20.0 rows/step=0.0 acceptance=0.00"
    )
    assert timings_line([]).startswith("requests:0 prompt:0.0ms")
