"""hexserve's own scheduler, driven as `engine/worker/step.py` drives it, with a price in the place of a graph."""

from dataclasses import replace

from engine.config import BLOCK_SIZE, EngineConfig
from engine.core.build import ModelLimits, build_scheduler
from engine.core.plan import MoveKind, StepPlan, StepResult
from engine.core.policy import COPY_BYTES_PER_MS, CostTable
from engine.request import Request, SamplingParams
from tools.simulate.clock import Step
from tools.simulate.load import Job
from tools.simulate.prices import Prices


class Continuous:
    """Rows of many requests in every step. What re-laying a cache and moving KV blocks cost is part of a step."""

    def __init__(self, prices: Prices, config: EngineConfig) -> None:
        self._prices = prices
        self._slot_ms = prices.kv_bytes / COPY_BYTES_PER_MS
        # What steps cost, as against what the scheduler's own table has learnt from them.
        self._true_costs = CostTable(prices.milliseconds, self._slot_ms)
        self._width = 0
        limits = ModelLimits(prices.tokens_per_request, prices.kv_bytes)
        learnt_costs = CostTable(prices.milliseconds, self._slot_ms)
        # Guesses need texts, and there are none.
        self.scheduler = build_scheduler(prices.shapes, learnt_costs, limits, replace(config, lookup_rows=0))

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

    def step(self) -> Step | None:
        """plan -> run -> sample -> commit."""
        plan = self.scheduler.plan()
        if plan is None:
            return None
        run_ms, moves_ms = self._true_costs.milliseconds(plan.shape), self._move(plan)
        self.scheduler.costs.observe(plan.shape, run_ms)
        updates = self.scheduler.commit(plan, StepResult(self._sample(plan)))
        tokens = tuple((int(update.sequence.id), token) for update in updates for token in update.new_tokens)
        return Step(run_ms + moves_ms, plan.shape.rows, plan.rows_used, tokens)

    def _move(self, plan: StepPlan) -> float:
        """Milliseconds of re-laying the pool and of copying pages to and from the host cache."""
        copies = sum(move.kind is not MoveKind.EVICT for move in plan.moves)
        relaid_ms = self._true_costs.switch_ms(self._width, plan.shape)
        self._width = plan.shape.past
        return relaid_ms + copies * BLOCK_SIZE * self._slot_ms

    def _sample(self, plan: StepPlan) -> dict[str, tuple[int, ...]]:
        """The token of a sequence is how many it has."""
        sequences = [segment.sequence for segment in plan.segments if segment.sampled_rows]
        return {sequence.id: (sequence.generated,) for sequence in sequences}
