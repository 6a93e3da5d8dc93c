"""Rates of guesses and when to try again, by hand."""

import pytest

from engine.core.speculation import FIRST_PAUSE, LONGEST_PAUSE, Acceptance, Retries


def test_a_rate_begins_with_the_prior_and_follows_what_was_judged() -> None:
    seen = Acceptance(decay=1.0)
    assert seen.rate(0.5) == 0.5
    seen.observe(right=3, was_wrong=True)
    assert seen.rate(0.5) == pytest.approx((3 + 2 * 0.5) / (4 + 2))
    seen.observe(right=0, was_wrong=False)  # no guess was judged
    assert seen.judged == 4


def test_what_is_recent_counts_more() -> None:
    early, late = Acceptance(decay=0.9), Acceptance(decay=0.9)
    for acceptance, order in ((early, (True, False)), (late, (False, True))):
        for right in order:
            for _ in range(10):
                acceptance.observe(right=int(right), was_wrong=not right)
    assert early.judged == late.judged
    assert early.rate(0.5) + 0.1 < 0.5 < late.rate(0.5) - 0.1


def test_attempts_come_rarer_while_they_go_wrong_and_at_once_after_one_that_was_right() -> None:
    retries, pauses = Retries(), []
    for _ in range(6):
        steps = 0
        while not retries.is_due:
            retries.step_over()
            steps += 1
        pauses.append(steps)
        retries.tried(right=0)
    assert pauses == [FIRST_PAUSE, 16, 32, 64, LONGEST_PAUSE, LONGEST_PAUSE]
    retries.tried(right=1)
    assert retries.is_due
