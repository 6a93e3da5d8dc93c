"""Times and durations in Ollama's fields."""

from engine.request import RequestTimings
from server.api.ollama.answers import Stopwatch, rfc3339, stamp


def test_a_time_has_nanoseconds_and_is_utc() -> None:
    assert rfc3339(1_700_000_000_000_000_001) == "2023-11-14T22:13:20.000000001Z"
    now_ns = 1_700_000_000_500_000_000
    assert stamp(now_ns) == "2023-11-14T22:13:20.500000000Z"
    assert stamp(now_ns, 60) == "2023-11-14T22:14:20.500000000Z"
    assert stamp(now_ns, None) == stamp(now_ns, 1e300) == "9999-12-31T23:59:59Z"


def test_durations_are_nanoseconds_of_their_parts() -> None:
    stopwatch = Stopwatch(came_ns=1_000, loaded_ns=3_000)
    assert stopwatch.durations(9_000, RequestTimings(5.0, 2.5, 1.25, 3, 0, 4)) == {
        "total_duration": 8_000,
        "load_duration": 2_000,
        "prompt_eval_duration": 2_500_000,
        "eval_duration": 1_250_000,
    }


def test_nobody_divides_by_nothing() -> None:
    stopwatch = Stopwatch(1, 1)
    for timings in (None, RequestTimings(0.0, 0.0, 0.0, 1, 0, 1)):
        found = stopwatch.durations(1, timings)
        assert (found["prompt_eval_duration"], found["eval_duration"]) == (1, 1)
