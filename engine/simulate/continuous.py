"""hexserve's own scheduler, driven as `engine/worker/loop.py` drives it, with a price in the place of a graph."""

from engine.cache.pages import PagePool
from engine.config import PAGE_COLUMNS, EngineConfig
from engine.modes.autoregressive import Autoregressive
from engine.request import Request, SamplingParams
from engine.scheduling.admission import Capacity
from engine.scheduling.costs import COPY_BYTES_PER_MS, CostTable
from engine.scheduling.plan import MoveKind, StepPlan
from engine.scheduling.scheduler import Rules, Scheduler
from engine.simulate.clock import Pass
from engine.simulate.load import Job
from engine.simulate.prices import Prices


class Continuous:
    """Rows of many requests in every pass. What re-laying a cache and moving pages cost is part of a pass."""

    def __init__(self, prices: Prices, config: EngineConfig) -> None:
        self._prices = prices
        self._column_ms = prices.kv_bytes / COPY_BYTES_PER_MS
        # What passes cost, as against what the scheduler's own table has learnt from them.
        self._true_costs = CostTable(prices.milliseconds, self._column_ms)
        self._widths = [0] * config.pools
        self.scheduler = _scheduler(prices, self._column_ms, config)

    def add(self, job: Job, now_s: float) -> None:
        """Queue a request. Prompts begin differently, so that none finds another's in the cache."""
        prompt = (job.number, *range(1, job.prompt))
        params = SamplingParams(max_tokens=job.output, temperature=0.0)
        self.scheduler.add(Request(str(job.number), prompt, params), (), 0, now_s)

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return self.scheduler.has_work

    @property
    def preemptions(self) -> int:
        """As the scheduler counts them."""
        return self.scheduler.counters.preemptions

    def step(self) -> Pass | None:
        """plan -> run -> sample -> commit."""
        plan = self.scheduler.plan()
        if plan is None:
            return None
        milliseconds = self._run(plan)
        self.scheduler.costs.observe(plan.shape, milliseconds)
        advances = self.scheduler.commit(plan, self._sample(plan))
        tokens = tuple((int(each.sequence.request.request_id), token) for each in advances for token in each.new_tokens)
        return Pass(milliseconds, plan.shape.rows, plan.rows_used, tokens)

    def _run(self, plan: StepPlan) -> float:
        """Milliseconds of the pass, of re-laying its pool and of copying pages to and from the host cache."""
        copies = sum(move.kind is not MoveKind.EVICT for move in plan.moves)
        relaid_ms = self._true_costs.switch_ms(self._widths[plan.pool], plan.shape)
        self._widths[plan.pool] = plan.shape.past
        return self._true_costs.milliseconds(plan.shape) + relaid_ms + copies * PAGE_COLUMNS * self._column_ms

    def _sample(self, plan: StepPlan) -> dict[str, tuple[int, ...]]:
        """The token of a sequence is how many it has."""
        chosen = [segment.sequence_id for segment in plan.segments if segment.chosen_rows]
        return {name: (found.generated,) for name in chosen if (found := self.scheduler.find(name)) is not None}


def _scheduler(prices: Prices, column_ms: float, config: EngineConfig) -> Scheduler:
    pools = [PagePool(prices.shapes.max_past, PAGE_COLUMNS) for _ in range(config.pools)]
    columns = pools[0].page_count * PAGE_COLUMNS
    rules = Rules(
        capacity=Capacity(columns, prices.tokens_per_request),
        max_running=config.max_running,
        max_gap_ms=config.max_gap_ms,
        reserve_tokens=config.reserve_tokens,
        prefix_cache=config.prefix_cache,
        offload_pages=config.kv_offload_mb * 1024**2 // (PAGE_COLUMNS * prices.kv_bytes),
    )
    return Scheduler(prices.shapes, CostTable(prices.milliseconds, column_ms), pools, Autoregressive(), rules)
