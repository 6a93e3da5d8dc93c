"""Conservation, order and time, under every policy."""

import pytest

from tests.tools.simulate.playing import everyone, play, policies, prices
from tools.simulate.clock import Step, drive
from tools.simulate.host_times import HostTimes
from tools.simulate.load import Job, SimulatedLoad
from tools.simulate.prices import Prices, fixed_table, lay_out
from tools.simulate.published import find, price

NAMES = ("serial", "fusion", "continuous")
TABLE = prices({1: 10.0, 8: 12.0, 32: 20.0})
BUSY = SimulatedLoad((0.0, 0.03, 0.03, 0.5, 2.0), 3, 70, 9)


@pytest.mark.parametrize("name", NAMES)
def test_every_token_comes_out_once_and_in_order(name: str) -> None:
    run = play(policies(TABLE)[name], BUSY, host_ms=1.0)
    assert sorted(run.answers) == list(range(15))
    for answer in run.answers.values():
        assert answer.tokens == list(range(9))
        assert answer.times_s == sorted(answer.times_s)
        assert answer.first_token_s > 0
    assert run.rows_used >= 15 * (70 + 8)  # every prompt token and every token but the last, once
    assert run.rows_run >= run.rows_used
    if not run.preemptions:
        assert run.rows_used == 15 * (70 + 8)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_load_gives_the_same_run(name: str) -> None:
    assert play(policies(TABLE)[name], BUSY) == play(policies(TABLE)[name], BUSY)


def test_a_client_asks_again_when_its_answer_has_ended() -> None:
    run = play(policies(TABLE)["serial"], everyone(2, 32, 2, requests=2))
    ends = {number: answer.times_s[-1] for number, answer in run.answers.items()}
    assert [run.answers[number].asked_s for number in (0, 1, 2, 3)] == [0.0, ends[0], 0.0, ends[2]]
    assert [answer.job.client for _, answer in sorted(run.answers.items())] == [0, 0, 1, 1]
    assert ends == pytest.approx({0: 0.03, 2: 0.06, 1: 0.09, 3: 0.12})


def test_time_steps_without_work_until_the_next_client_comes() -> None:
    run = play(policies(TABLE)["serial"], SimulatedLoad((1.0, 5.0), 1, 32, 1))
    assert [run.answers[number].times_s for number in (0, 1)] == [[pytest.approx(1.02)], [pytest.approx(5.02)]]


@pytest.mark.parametrize("rows", [(1, 128), (1, 32, 128)])
@pytest.mark.parametrize(("same_context", "slower"), [(False, 0.0), (True, 0.02)])
def test_one_request_is_served_as_serially(rows: tuple[int, ...], same_context: bool, slower: float) -> None:
    (published,) = find("llama_v3_2_3b_instruct", "x-elite")
    times = price(published, lay_out(rows, 4096, same_context))
    table = Prices(fixed_table(times), times, published.kv_bytes)
    found = {name: play(policies(table)[name], everyone(1, 256, 128), 2.0) for name in ("serial", "continuous")}
    assert found["continuous"].steps == found["serial"].steps == 2 + 127
    assert 0.0 <= found["continuous"].seconds / found["serial"].seconds - 1 <= slower + 1e-9


def test_a_policy_that_never_runs_a_step_is_found_out() -> None:
    class Idle:
        has_work = True
        preemptions = 0

        def add(self, job: Job, now_s: float) -> None:
            """Forget it."""

        def step(self) -> Step | None:
            return None

    with pytest.raises(AssertionError, match="no step after 100 plans"):
        drive(Idle(), everyone(1, 1, 1), HostTimes.constant(0.0))


def test_new_tokens_are_told() -> None:
    told: list[int] = []
    drive(policies(TABLE)["continuous"], everyone(3, 4, 5), HostTimes.constant(0.0), told.append)
    assert sum(told) == 15
