"""One way to build a scheduler, for the worker and for the simulator."""

import dataclasses
from dataclasses import replace

import pytest

from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from engine.core.build import ModelLimits, build_scheduler
from engine.core.plan import Rules
from engine.core.policy import CostTable
from engine.core.sequence import Capacity
from engine.errors import BundleError
from tests.engine.worker.simulation import fixed
from tools.simulate.continuous import Continuous
from tools.simulate.prices import Prices, fixed_table

LIMITS = ModelLimits(max_context=100, kv_bytes_per_token=1024)
CONFIG = EngineConfig(
    "",
    max_context=90,
    max_running=7,
    max_gap_ms=11.0,
    reserve_tokens=13,
    prefix_cache=False,
    kv_offload_mb=2,
    lookup_rows=3,
    prediction_rows=5,
    embed_rows=9,
)


def test_every_setting_arrives() -> None:
    scheduler = build_scheduler(fixed((8, 120)), CostTable({}), LIMITS, CONFIG)
    assert scheduler.rules == Rules(
        config=CONFIG,
        capacity=Capacity(112, 90),
        offload_blocks=2 * 1024 // 16,
        is_recurrent=False,
        state_snapshots=0,
        window=0,
        window_blocks=0,
    )
    assert (scheduler.blocks.block_count, scheduler.blocks.block_size) == (7, 16)
    plain = build_scheduler(fixed((8, 120)), CostTable({}), LIMITS, EngineConfig(""))
    assert plain.rules.capacity.max_context == 100


def test_host_memory_holds_states_instead_of_blocks_where_layers_are_recurrent() -> None:
    limits = ModelLimits(max_context=100, kv_bytes_per_token=1024, state_bytes=500_000)
    config = replace(CONFIG, lookup_rows=0)
    without = build_scheduler(fixed((8, 120)), CostTable({}), limits, config).rules
    rules = build_scheduler(fixed((8, 120)), CostTable({}), limits, replace(config, prefix_cache=True)).rules
    assert (rules.is_recurrent, rules.offload_blocks, rules.state_snapshots) == (True, 0, 2 * 1024**2 // 500_000)
    assert (without.is_recurrent, without.state_snapshots) == (True, 0)


@pytest.mark.parametrize(("window", "columns", "blocks"), [(16, 400, 7), (16, 32, 2), (64, 400, 7), (200, 400, 15)])
def test_layers_with_a_window_get_a_share_of_the_blocks(window: int, columns: int, blocks: int) -> None:
    """A quarter, where a sequence and a step of 8 rows fit into that; never more than there are columns."""
    limits = ModelLimits(max_context=400, kv_bytes_per_token=1024, window=window)
    rules = build_scheduler(fixed((8, columns)), CostTable({}), limits, EngineConfig("")).rules
    assert (rules.window, rules.window_blocks) == (window, blocks)


def test_a_rule_that_nobody_set_is_a_mistake() -> None:
    assert all(field.default is dataclasses.MISSING for field in dataclasses.fields(Rules))


def test_a_pool_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(BundleError, match="a pool of 15 KV slots is smaller than a block of 16"):
        build_scheduler(fixed((8, 15)), CostTable({}), LIMITS, CONFIG)


def test_the_simulator_has_the_worker_s_rules_but_for_guesses() -> None:
    shapes = {StepShape(1, 127): 10.0, StepShape(32, 127): 20.0}
    prices = Prices(fixed_table(shapes), shapes, kv_bytes=1024)
    limits = ModelLimits(prices.tokens_per_request, prices.kv_bytes)
    worker = build_scheduler(prices.shapes, CostTable(shapes), limits, CONFIG)
    assert Continuous(prices, CONFIG).scheduler.rules == dataclasses.replace(
        worker.rules, config=replace(CONFIG, lookup_rows=0)
    )
