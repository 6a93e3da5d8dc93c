"""Building the scheduler of a configuration: its pool and rules. The worker and the simulator both do it here."""

from dataclasses import dataclass, replace

from engine.bundle.specs import SPARE_SLOTS, ForecastSpec
from engine.bundle.variant import ShapeTable
from engine.config import BLOCK_SIZE, EngineConfig
from engine.core.kv_blocks import BlockPool, Sight
from engine.core.plan import Rules
from engine.core.policy import CostTable
from engine.core.scheduler import Scheduler
from engine.core.sequence import Capacity, blocks_for
from engine.core.window_blocks import window_budget
from engine.errors import BundleError


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the scheduler must know of a model: most tokens of one sequence, bytes of one token's keys and values.
    state_bytes: what recurrent layers carry for a sequence, 0 = there are none. Such a model's host memory for prefixes
    holds snapshots of states instead of blocks. forecast: how it guesses for itself. The slots that takes are the first
    of the pool. window: the widest of its layers, 0 = keys and values are kept of every token; of_all: every layer of a
    pool has one; window_blocks: most blocks of layers that have one, 0 = a share of all."""

    max_context: int
    kv_bytes_per_token: int
    state_bytes: int = 0
    forecast: ForecastSpec | None = None
    window: int = 0
    of_all: bool = False
    window_blocks: int = 0


def build_scheduler(shapes: ShapeTable, costs: CostTable, limits: ModelLimits, config: EngineConfig) -> Scheduler:
    """Of fused graphs the pool is of `config.kv_slots` slots in whole caches. BundleError for one without a block.
    `config.max_context` may lower the model's; 0 leaves it."""
    forecast = limits.forecast
    if shapes.slots:  # nothing is shared, guessed or offloaded
        config = replace(config, prefix_cache=False, kv_offload_mb=0, reserve_tokens=0)
        config = replace(config, lookup_rows=0, prediction_rows=0)
        blocks = BlockPool(config.kv_slots, shapes.max_past - SPARE_SLOTS)
        slots = blocks.block_size
    else:
        blocks = _widest_pool(shapes, forecast)
        slots = (blocks.block_count - blocks.reserved) * BLOCK_SIZE
    host_bytes, is_recurrent = config.kv_offload_mb * 1024**2, limits.state_bytes > 0
    longest = min(config.max_context or limits.max_context, limits.max_context)
    sight = Sight(limits.window, blocks.block_size, shapes.max_rows)
    if limits.of_all and sight.most * BLOCK_SIZE <= slots:
        slots = longest  # none of which a sequence holds at once
    rules = Rules(
        config=config,
        capacity=Capacity(slots, longest),
        offload_blocks=0 if is_recurrent else host_bytes // (BLOCK_SIZE * limits.kv_bytes_per_token),
        is_recurrent=is_recurrent,
        state_snapshots=host_bytes // limits.state_bytes if is_recurrent and config.prefix_cache else 0,
        window=limits.window,
        window_blocks=0
        if limits.of_all
        else limits.window_blocks or window_budget(limits.window, shapes.max_past, shapes.max_rows, BLOCK_SIZE),
    )
    return Scheduler(shapes, costs, blocks, rules, forecast)


def _widest_pool(shapes: ShapeTable, forecast: ForecastSpec | None) -> BlockPool:
    taken = blocks_for(forecast.columns, BLOCK_SIZE) if forecast is not None else 0
    if shapes.max_past < BLOCK_SIZE:
        raise BundleError(f"a pool of {shapes.max_past} KV slots is smaller than a block of {BLOCK_SIZE}")
    if shapes.max_past < (taken + 1) * BLOCK_SIZE:
        raise BundleError(f"a pool of {shapes.max_past} KV slots holds no block beside its forecast prefix")
    return BlockPool(shapes.max_past, BLOCK_SIZE, taken)
