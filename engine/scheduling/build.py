"""Building the scheduler of a configuration: pools, rules and mode. The worker and the simulator both do it here."""

from dataclasses import dataclass

from engine.bundle.forecast import ForecastSpec
from engine.bundle.fused_spec import SPARE_COLUMNS
from engine.bundle.variant import ShapeTable
from engine.cache.pages import PagePool
from engine.config import PAGE_COLUMNS, EngineConfig
from engine.errors import BundleError
from engine.modes.autoregressive import Autoregressive
from engine.modes.forecast_tree import ForecastShape
from engine.modes.mode import Mode
from engine.modes.prompt_lookup import PromptLookup
from engine.scheduling.admission import Capacity, pages_for
from engine.scheduling.costs import CostTable
from engine.scheduling.rules import Rules
from engine.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the scheduler must know of a model: most tokens of one sequence, bytes of one token's keys and values.

    state_bytes: what recurrent layers carry for a sequence, 0 = there are none. Such a model's host memory for prefixes
    holds snapshots of states instead of pages. forecast: how it guesses for itself. The columns that takes
    are the first of every pool.
    """

    max_context: int
    kv_bytes_per_token: int
    state_bytes: int = 0
    forecast: ForecastSpec | None = None


def build_scheduler(shapes: ShapeTable, costs: CostTable, limits: ModelLimits, config: EngineConfig) -> Scheduler:
    """`config.pools` pools as wide as the widest past. BundleError when that is less than a page.

    `config.max_context` may lower the model's; 0 leaves it. Of fused graphs there is one pool, of whole caches.
    """
    if shapes.slots:
        return _build_for_slots(shapes, costs, limits, config)
    if shapes.max_past < PAGE_COLUMNS:
        raise BundleError(f"a pool of {shapes.max_past} columns is smaller than a page of {PAGE_COLUMNS}")
    forecast = limits.forecast
    taken = pages_for(forecast.columns, PAGE_COLUMNS) if forecast is not None else 0
    if shapes.max_past < (taken + 1) * PAGE_COLUMNS:
        raise BundleError(f"a pool of {shapes.max_past} columns holds no page beside its forecast prefix")
    pools = [PagePool(shapes.max_past, PAGE_COLUMNS, taken) for _ in range(config.pools)]
    context = min(config.max_context or limits.max_context, limits.max_context)
    host_bytes, is_recurrent = config.kv_offload_mb * 1024**2, limits.state_bytes > 0
    rules = Rules(
        capacity=Capacity((pools[0].page_count - taken) * PAGE_COLUMNS, context),
        max_running=config.max_running,
        max_gap_ms=config.max_gap_ms,
        prefix_cache=config.prefix_cache,
        lookup_rows=config.lookup_rows,
        prediction_rows=config.prediction_rows,
        offload_pages=0 if is_recurrent else host_bytes // (PAGE_COLUMNS * limits.kv_bytes_per_token),
        reserve_tokens=config.reserve_tokens,
        is_recurrent=is_recurrent,
        state_snapshots=host_bytes // limits.state_bytes if is_recurrent and config.prefix_cache else 0,
        pooled_rows=config.embed_rows,
    )
    mode: Mode = PromptLookup() if config.lookup_rows else Autoregressive()
    tree = ForecastShape(forecast.first_id, forecast.branches, forecast.columns) if forecast is not None else None
    return Scheduler(shapes, costs, pools, mode, rules, tree)


def _build_for_slots(shapes: ShapeTable, costs: CostTable, limits: ModelLimits, config: EngineConfig) -> Scheduler:
    """`config.pool_columns` columns in caches of all a sequence may need. Nothing is shared, guessed or offloaded."""
    columns = shapes.max_past - SPARE_COLUMNS
    rules = Rules(
        capacity=Capacity(columns, min(config.max_context or limits.max_context, limits.max_context)),
        max_running=config.max_running,
        max_gap_ms=config.max_gap_ms,
        prefix_cache=False,
        lookup_rows=0,
        prediction_rows=0,
        offload_pages=0,
        reserve_tokens=0,
        is_recurrent=False,
        state_snapshots=0,
        pooled_rows=config.embed_rows,
    )
    return Scheduler(shapes, costs, [PagePool(config.pool_columns, columns)], Autoregressive(), rules)
