"""Drives a real loop over the fake runtime, and says by hand what every sequence must become."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from engine.bundle.variant import PassShape, ShapeTable, slot_table
from engine.cache.pages import PagePool
from engine.grammar.masks import GrammarMasks
from engine.grammar.matching import GrammarFailed
from engine.graphs.fake_runtime import FakeRuntime, expected_token
from engine.modes.autoregressive import Autoregressive
from engine.modes.forecast_tree import ForecastShape
from engine.modes.mode import Mode
from engine.modes.prompt_lookup import PromptLookup
from engine.request import FinishReason, GuessCounts, Pooling, Request, SamplingParams, TokenLogprob
from engine.scheduling.admission import Capacity
from engine.scheduling.costs import CostTable
from engine.scheduling.invariants import violations
from engine.scheduling.rules import Rules
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence as Progress
from engine.speculation.drafter import Drafter
from engine.worker.loop import EngineLoop
from tests.engine.grammar.small_tokens import Inline
from tests.engine.worker.fused_runtime import FusedFake
from tests.engine.worker.recurrent_runtime import RecurrentFake
from tests.engine.worker.segmented_runtime import SegmentedFake

VOCAB = 50
PAGE = 16
PLAIN_RULES: dict[str, object] = {
    "max_running": 256,
    "max_gap_ms": 250.0,
    "prefix_cache": True,
    "lookup_rows": 0,
    "prediction_rows": 16,
    "offload_pages": 0,
    "reserve_tokens": 0,
    "is_recurrent": False,
    "state_snapshots": 0,
    "pooled_rows": 16,
}


def fixed(*shapes: tuple[int, int], prefill: tuple[tuple[int, int], ...] = ()) -> ShapeTable:
    """A table of (rows, past) shapes; `prefill` ones give no logits."""
    made, kv_only = (tuple(sorted(PassShape(rows, past) for rows, past in part)) for part in (shapes, prefill))
    return ShapeTable(made, max(s.rows for s in made), max(s.past for s in made), prefill=kv_only)


def free(max_rows: int, columns: int) -> ShapeTable:
    """A free-shape table."""
    return ShapeTable((), max_rows, columns)


def segmented(max_rows: int, columns: int) -> ShapeTable:
    """A free-shape table where every sequence has a cache of its own."""
    return ShapeTable((), max_rows, columns, segmented=True)


def fused(slots: int, *rows: int, past: int = 129) -> ShapeTable:
    """The table of fused graphs of so many rows and those that only decode."""
    return slot_table({1, slots, *rows}, past, slots)


def sequence_of(request_id: str) -> Progress:
    """A sequence of one token, where any will do."""
    return Progress(Request(request_id, (1,), SamplingParams(max_tokens=1)), 0, 0, [1])


def no_tokenizer() -> LLTokenizer:
    """For masks of sequences without grammars."""
    raise GrammarFailed("this engine has no tokenizer")


def by_hand(prompt: tuple[int, ...], max_tokens: int, stops: tuple[int, ...] = (), limit: int = 10**9) -> list[int]:
    """The completion by the definition of the fake runtime, one whole sequence at a time."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) < limit:
        tokens.append(expected_token(list(enumerate(tokens)), VOCAB))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class RightGuesses(PromptLookup):
    """Guesses what the fake runtime will say, so that guesses are accepted; prompt lookup finds nothing in its text."""

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """By the definition."""
        return tuple(by_hand(tuple(tokens), limit))


@dataclass
class Simulation:
    """A loop, a clock that counts calls, and everything that came out."""

    loop: EngineLoop
    runtime: FakeRuntime
    outputs: dict[str, list[int]] = field(default_factory=dict)
    finishes: dict[str, FinishReason] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    guesses: dict[str, GuessCounts] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def scheduler(self) -> Scheduler:
        return self.loop.scheduler

    @property
    def tokens_per_pass(self) -> float:
        """Of a sequence that decodes: its certain token, and the guesses that were right."""
        counters, stats = self.scheduler.counters, self.loop.stats()
        return 1 + counters.accepted_rows / (stats.decode_rows - counters.drafted_rows)

    def submit(self, name: str, prompt: tuple[int, ...], max_tokens: int, **kwargs: object) -> None:
        emitted = tuple(kwargs.pop("emitted", ()))  # type: ignore[call-overload]
        priority = int(kwargs.pop("priority", 0))  # type: ignore[call-overload]
        salt = bytes(kwargs.pop("cache_salt", b""))  # type: ignore[call-overload]
        seed = int(kwargs.pop("drawn", 1))  # type: ignore[call-overload]
        prediction = tuple(kwargs.pop("prediction", ()))  # type: ignore[call-overload]
        params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **kwargs})  # type: ignore[arg-type]
        self.outputs[name] = list(emitted)
        self.prompt_logprobs[name] = []
        self.loop.add(Request(name, prompt, params, priority, salt, prediction=prediction), emitted, seed, now_s=0.0)

    def embed(self, name: str, prompt: tuple[int, ...], priority: int = 0) -> None:
        """Submit a text whose last row is wanted."""
        request = Request(name, prompt, SamplingParams(max_tokens=0), priority, pooling=Pooling())
        self.loop.add(request, (), 1, now_s=0.0)

    def step(self) -> None:
        report = self.loop.step()
        for event in report.events:
            self.outputs.setdefault(event.id, []).extend(event.token_ids)
            self.prompt_logprobs.setdefault(event.id, []).extend(event.prompt_logprobs)
            self.cached[event.id] = event.cached_tokens
            if event.guesses is not None:
                self.guesses[event.id] = self.guesses.get(event.id, GuessCounts()).plus(event.guesses)
            if event.vector:
                self.vectors[event.id] = np.frombuffer(event.vector, "<f4")
            if event.finish is not None:
                self.finishes[event.id] = event.finish
        for failure in report.failures:
            self.failures[failure.id] = failure.message
        assert list(violations(self.scheduler)) == []

    def run(self, most: int = 5000) -> int:
        """Step until idle; the number of steps."""
        steps = 0
        while self.scheduler.has_work:
            assert steps < most, f"no end after {steps} steps: {self.scheduler.sequences()}"
            self.step()
            steps += 1
        return steps


def fake_of(shapes: ShapeTable, is_recurrent: bool) -> type[FakeRuntime]:
    """The fake of the kind of bundle that has such shapes."""
    if is_recurrent:
        return RecurrentFake
    if shapes.slots:
        return FusedFake
    return SegmentedFake if shapes.segmented else FakeRuntime


def simulate(
    shapes: ShapeTable,
    *,
    pools: int = 1,
    mode: Mode | None = None,
    costs: dict[PassShape, float] | None = None,
    max_context: int = 10**6,
    columns: int | None = None,
    masks: GrammarMasks | None = None,
    page: int = PAGE,
    drafter: Drafter | None = None,
    forecasts: ForecastShape | None = None,
    **rules: object,
) -> Simulation:
    """Build a simulation; `rules` are fields of `Rules`, instead of PLAIN_RULES. page: columns of one.

    forecasts: of a prefix of a page.
    """
    taken = 0 if forecasts is None else 1
    pages = [PagePool(columns or shapes.max_past, page, taken) for _ in range(pools)]
    # Of fused graphs a page is a whole cache, and a sequence has one.
    capacity = Capacity(page if shapes.slots else (pages[0].page_count - taken) * page, max_context)
    scheduler = Scheduler(
        shapes,
        CostTable(costs or {}),
        pages,
        mode or Autoregressive(),
        Rules(capacity, **{**PLAIN_RULES, **rules}),  # type: ignore[arg-type]
        forecasts,
    )
    runtime = fake_of(shapes, bool(rules.get("is_recurrent")))(shapes, pools, shapes.max_past, VOCAB)
    ticks = iter(range(10**9))
    masks = masks or GrammarMasks(no_tokenizer)
    loop = EngineLoop(scheduler, runtime, lambda: float(next(ticks)), masks, Inline(), drafter=drafter)
    return Simulation(loop, runtime)
