"""The real scheduler over prices: what a step costs and who gets rows."""

import pytest

from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from tests.tools.simulate.playing import KV_BYTES, everyone, play, policies, prices, rate
from tools.simulate.clock import Run
from tools.simulate.continuous import Continuous
from tools.simulate.load import Job
from tools.simulate.prices import Prices, fixed_table, lay_out
from tools.simulate.published import find, price


def test_sixteen_clients_by_hand() -> None:
    """Prompts of 8 fill steps of 128 rows, then 16 rows decode at once."""
    run = play(policies(prices({1: 10.0, 128: 30.0}))["continuous"], everyone(16, 8, 5))
    assert run.steps == 1 + 4
    assert run.seconds == pytest.approx(5 * 0.03)
    assert run.rows_used == 16 * 8 + 4 * 16


def test_prefill_joins_the_decodes_of_others() -> None:
    policy = Continuous(prices({1: 10.0, 32: 20.0}), EngineConfig(""))
    policy.add(Job(0, 0, 20, 8), 0.0)
    assert policy.step() is not None
    policy.add(Job(1, 1, 40, 8), 0.0)
    mixed = policy.step()
    assert mixed is not None
    assert (mixed.rows_used, mixed.tokens) == (32, ((0, 1),))
    assert list(policy.scheduler.violations()) == []


def test_re_laying_a_pool_costs_time_on_the_clock() -> None:
    shapes = {StepShape(1, 911): 5.0, StepShape(16, 896): 10.0}
    run = play(Continuous(Prices(fixed_table(shapes), shapes, KV_BYTES), EngineConfig("")), everyone(1, 16, 3))
    assert run.seconds == pytest.approx((10 + 5 + 0.896 + 5) / 1000)  # 896 columns at a microsecond each


def test_a_lone_stream_moves_to_the_narrow_variant_when_waiting_has_cost_as_much() -> None:
    shapes = {StepShape(1, 1000): 40.0, StepShape(128, 900): 60.0}
    table = Prices(fixed_table(shapes), shapes, kv_bytes=400_000)  # 0.1 ms a column
    run = play(Continuous(table, EngineConfig("")), everyone(1, 100, 12))
    # The prompt, four tokens at 20 ms too much each, one re-laying of 90 ms, six tokens more.
    assert run.seconds == pytest.approx((60 + 4 * 60 + 130 + 6 * 40) / 1000)


def test_stock_graphs_serve_sixteen_clients_whose_slots_run_out() -> None:
    """AR-128 and AR-1 over one context: not a step of one row while several wait (16 x 384 tokens, 3,968 slots).

    A step of 128 rows costs 2.1 times one of a row: that leaves 3.7 of the 7.6 times fewer steps.
    """
    (published,) = find("llama_v3_2_3b_instruct", "x-elite")
    times = price(published, lay_out((1, 128), 4096, same_context=True))
    table = Prices(fixed_table(times), times, published.kv_bytes)
    found = {name: play(policies(table)[name], everyone(16, 256, 128), 2.0) for name in ("serial", "continuous")}
    assert found["continuous"].steps < found["serial"].steps / 5
    assert rate(found["continuous"]) > 3.5 * rate(found["serial"])


def busy(table: Prices) -> Run:
    return play(policies(table)["continuous"], everyone(16, 128, 96, requests=2), 2.0)


@pytest.mark.parametrize("one_row", [20.0, 40.0, 60.0])
def test_the_wider_a_step_is_for_its_price_the_more_sharing_gives(one_row: float) -> None:
    table = prices({1: one_row, 32: 65.0, 128: 70.0}, past=3968)
    serial = play(policies(table)["serial"], everyone(16, 128, 96, requests=2), 2.0)
    ratio = rate(busy(table)) / rate(serial)
    decodes_only = 16 * one_row / 70.0
    assert decodes_only * 0.8 < ratio < 16 + 128 / 96
