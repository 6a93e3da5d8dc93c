"""Drives a real loop over the fake runtime, and says by hand what every sequence must become."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from engine.bundle.specs import ForecastSpec
from engine.bundle.variant import ShapeTable, StepShape, slot_table
from engine.config import EngineConfig
from engine.core.kv_blocks import BlockPool
from engine.core.plan import Rules
from engine.core.policy import CostTable
from engine.core.scheduler import Scheduler
from engine.core.sequence import Capacity
from engine.core.sequence import Sequence as Progress
from engine.core.speculation import Drafter, PromptLookup
from engine.grammar.masks import GrammarFailed, GrammarMasks
from engine.request import FinishReason, GuessCounts, Pooling, Request, SamplingParams, TokenLogprob
from engine.worker.images import ImageQueue
from engine.worker.step import EngineLoop
from tests.engine.fake_runtime import FakeRuntime, expected_token
from tests.engine.worker.fused_runtime import FusedFake
from tests.engine.worker.recurrent_runtime import RecurrentFake
from tests.engine.worker.segmented_runtime import SegmentedFake

VOCAB = 50
BLOCK = 16
PLAIN_CONFIG = EngineConfig("", max_gap_ms=250.0, lookup_rows=0, reserve_tokens=0)
PLAIN_RULES: dict[str, object] = {
    "offload_blocks": 0,
    "is_recurrent": False,
    "state_snapshots": 0,
    "window": 0,
    "window_blocks": 0,
}


def fixed(*shapes: tuple[int, int], prefill: tuple[tuple[int, int], ...] = ()) -> ShapeTable:
    """A table of (rows, past) shapes; `prefill` ones give no logits."""
    made, kv_only = (tuple(sorted(StepShape(rows, past) for rows, past in part)) for part in (shapes, prefill))
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


def by_hand(
    prompt: tuple[int, ...], max_tokens: int, stops: tuple[int, ...] = (), limit: int = 10**9, window: int = 0
) -> list[int]:
    """The completion by the definition of the fake runtime, one whole sequence at a time. window: 0 = rows see all."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens and len(tokens) < limit:
        tokens.append(expected_token(list(enumerate(tokens))[-window:], VOCAB))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class RightGuesses(PromptLookup):
    """Guesses what the fake runtime will say, so that guesses are accepted; prompt lookup finds nothing in its text."""

    def __init__(self, window: int = 0) -> None:
        super().__init__()
        self._window = window

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """By the definition."""
        return tuple(by_hand(tuple(tokens), limit, window=self._window))


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
    def tokens_per_step(self) -> float:
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
        assert list(self.scheduler.violations()) == []

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


def rules_of(capacity: Capacity, changed: dict[str, object]) -> Rules:
    settings = {name: value for name, value in changed.items() if name not in PLAIN_RULES}
    others: dict[str, object] = {name: changed.get(name, value) for name, value in PLAIN_RULES.items()}
    return Rules(replace(PLAIN_CONFIG, **settings), capacity, **others)  # type: ignore[arg-type]


def simulate(
    shapes: ShapeTable,
    *,
    lookup: PromptLookup | None = None,
    costs: dict[StepShape, float] | None = None,
    max_context: int = 10**6,
    columns: int | None = None,
    masks: GrammarMasks | None = None,
    block: int = BLOCK,
    drafter: Drafter | None = None,
    forecasts: ForecastSpec | None = None,
    images: ImageQueue | None = None,
    **rules: object,
) -> Simulation:
    """Build a simulation; `rules` are fields of `Rules` or of its configuration, instead of the plain ones.

    block: columns of one.

    forecasts: of a prefix of a block.
    """
    taken = 0 if forecasts is None else 1
    blocks = BlockPool(columns or shapes.max_past, block, taken)
    # Of fused graphs a block is a whole cache, and a sequence has one.
    whole = block if shapes.slots else (blocks.block_count - taken) * block
    gives_back = rules.get("window") and not rules.get("window_blocks")
    capacity = Capacity(max_context if gives_back else whole, max_context)
    scheduler = Scheduler(
        shapes,
        CostTable(costs or {}),
        blocks,
        rules_of(capacity, rules),
        forecasts,
        lookup,
    )
    runtime = fake_of(shapes, bool(rules.get("is_recurrent")))(shapes, shapes.max_past, VOCAB)
    window = int(str(rules.get("window", 0)))
    if window and isinstance(runtime, SegmentedFake):
        runtime.open_caches(window)
    elif window:
        runtime.window = window
    ticks = iter(range(10**9))
    masks = masks or GrammarMasks(no_tokenizer)
    loop = EngineLoop(scheduler, runtime, lambda: float(next(ticks)), masks, drafter=drafter, images=images)
    return Simulation(loop, runtime)
