"""Durations of keep_alive: seconds, or as Go writes them."""

import pytest

from server.api.ollama.translation import kept_s
from server.http.errors import Refusal


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0),
        (-1, -1),
        (300, 300),
        (0.5, 0.5),
        ("0", 0),
        ("-1", -1),
        ("300", 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("-1m", -60),
        ("+2s", 2),
        ("250ms", 0.25),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        ("1ns", 1e-9),
        ("0s", 0),
    ],
)
def test_seconds(given: float | str | None, seconds: float | None) -> None:
    assert kept_s(given) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("given", ["", "soon", "5 m", "5m!", "m", "-", "1d", "5m3", "٣s", "1e3"])
def test_what_is_no_duration(given: str) -> None:
    with pytest.raises(Refusal, match="keep_alive"):
        kept_s(given)
