"""Token buckets against their definition, with a clock that is turned by hand."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.middleware.auth import Bucket, Limiter, Rates


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(
    per_minute=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 20_000)), max_size=30),
)
def test_a_bucket_is_its_definition(per_minute: int, steps: list[tuple[int, int]]) -> None:
    bucket = Bucket(per_minute, 0.0)
    exact, now = Fraction(per_minute), 0
    for seconds, amount in steps:
        now += seconds
        exact = min(Fraction(per_minute), exact + Fraction(seconds * per_minute, 60)) - amount
        bucket.take(amount, float(now))
        assert bucket.level(float(now)) == pytest.approx(float(exact), abs=1e-6)
        wait = max(Fraction(0), (1 - exact) * 60 / per_minute)
        assert bucket.wait_s(1, float(now)) == pytest.approx(float(wait), abs=1e-6)


def test_time_that_goes_back_changes_nothing() -> None:
    bucket = Bucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.level(50.0) == 0
    assert bucket.level(101.0) == 1


def test_requests_per_minute() -> None:
    clock = Clock()
    limiter = Limiter(Rates(requests_per_minute=6), clock)
    for _ in range(6):
        assert limiter.enter("anna") is None
        limiter.leave("anna")
    denial = limiter.enter("anna")
    assert denial is not None and denial.wait_s == pytest.approx(10)
    assert limiter.enter("ben") is None
    clock.now += 9.9
    assert limiter.enter("anna") is not None
    clock.now += 0.2
    assert limiter.enter("anna") is None


def test_tokens_are_paid_back_by_waiting() -> None:
    clock = Clock()
    limiter = Limiter(Rates(tokens_per_minute=600), clock)
    assert limiter.enter("anna") is None
    limiter.spend("anna", 900)
    limiter.leave("anna")
    denial = limiter.enter("anna")
    assert denial is not None and denial.wait_s == pytest.approx(30.1)
    clock.now += 30.2
    assert limiter.enter("anna") is None
    assert dict(limiter.headers("anna"))["x-ratelimit-remaining-tokens"] == "2"


def test_requests_at_once() -> None:
    limiter = Limiter(Rates(max_concurrent=2), Clock())
    assert [limiter.enter("anna") is None for _ in range(3)] == [True, True, False]
    assert limiter.enter("ben") is None
    limiter.leave("anna")
    assert limiter.enter("anna") is None


def test_headers() -> None:
    clock = Clock()
    limiter = Limiter(Rates(requests_per_minute=60, tokens_per_minute=600), clock)
    assert limiter.headers("nobody") == ()
    limiter.enter("anna")
    limiter.spend("anna", 1000)
    assert dict(limiter.headers("anna")) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1.000s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "100.000s",
    }


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200))
def test_memory_is_bounded_and_nobody_running_is_forgotten(steps: list[tuple[bool, int]]) -> None:
    limiter = Limiter(Rates(requests_per_minute=1000, max_concurrent=3), Clock(), remembered=5)
    inside: dict[str, int] = {}
    for enters, number in steps:
        name = str(number)
        if enters:
            denial = limiter.enter(name)
            assert (denial is not None) == (inside.get(name, 0) >= 3)
            inside[name] = inside.get(name, 0) + (denial is None)
        elif inside.get(name):
            limiter.leave(name)
            inside[name] -= 1
        running = sum(1 for count in inside.values() if count)
        assert limiter.busy == running
        assert len(limiter) <= running + 5


def test_a_caller_goes_on_with_one_whole_token_and_not_with_less() -> None:
    for spent, allowed in ((599, True), (600, False), (601, False)):
        limiter = Limiter(Rates(tokens_per_minute=600), Clock())
        limiter.enter("anna")
        limiter.spend("anna", spent)
        assert (limiter.enter("anna") is None) is allowed
    limiter = Limiter(Rates(requests_per_minute=2), Clock())
    assert [limiter.enter("anna") is None for _ in range(3)] == [True, True, False]


def test_any_limit_is_a_limit() -> None:
    assert not Rates().any
    for name in ("requests_per_minute", "tokens_per_minute", "max_concurrent"):
        assert Rates(**{name: 1}).any


def test_who_has_been_idle_longest_is_forgotten_first() -> None:
    limiter = Limiter(Rates(requests_per_minute=10), Clock(), remembered=2)
    for name in ("anna", "ben", "anna", "carl"):
        assert limiter.enter(name) is None
        limiter.leave(name)
    assert limiter.headers("ben") == ()
    assert [dict(limiter.headers(name))["x-ratelimit-remaining-requests"] for name in ("anna", "carl")] == ["8", "9"]
