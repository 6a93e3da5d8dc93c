"""Speed of served bundles: the medians of its rounds."""

import pytest

from server.commands.bench.measured import AnswerOutcome, MeasuredAnswer
from server.commands.http_client import StreamedUsage, Unreachable
from tools.evaluate.speed import Rate, speed_of


def answer(first_s: float, step_s: float) -> MeasuredAnswer:
    gaps = (step_s,) * 4
    return MeasuredAnswer(AnswerOutcome.OK, first_s + sum(gaps), first_s, gaps, StreamedUsage(100, 5))


def test_medians_with_the_slowest_and_the_fastest() -> None:
    found = speed_of([answer(0.5, 0.1), answer(1.0, 0.2), answer(2.0, 0.05)])
    assert found.decode == Rate(pytest.approx(10.0), pytest.approx(5.0), pytest.approx(20.0))
    assert found.prompt == Rate(100.0, 50.0, 200.0)
    assert found.prompt_tokens == 100


def test_an_answer_that_came_at_once_tells_no_time() -> None:
    assert speed_of([answer(0.5, 0.0), answer(1.0, 0.2)]).decode.value == pytest.approx(5.0)
    with pytest.raises(Unreachable, match="no answer came in more than one piece"):
        speed_of([answer(0.5, 0.0)])


def test_a_failure_is_none_of_the_figures() -> None:
    failed = MeasuredAnswer(AnswerOutcome.FAILED, 1.0, error="HTTP 500: a pass failed")
    with pytest.raises(Unreachable, match="the speed cannot be measured: HTTP 500: a pass failed"):
        speed_of([answer(1.0, 0.1), failed])
