"""A block-diffusion model as a draft: what it proposes in one step, beside the real scheduler and on real graphs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.manifest import DiffusionSpec
from engine.bundle.variant import ShapeTable, StepShape
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.core.policy import CostTable
from engine.core.speculation import DraftRequest
from engine.errors import BundleError
from engine.request import Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch
from engine.speculation.draft_models import BlockDraft
from engine.speculation.draft_steps import DraftSteps
from engine.worker.assembly import assemble
from tests.bundles import Bundles
from tests.engine.core.eager_blocks import EagerBlocks, write_sdar
from tests.engine.fake_runtime import FakeRuntime
from tests.engine.speculation.test_draft_model import DRAFT_MS, TARGET_MS, prompt, runtime_of
from tests.engine.worker.segmented_runtime import SegmentedFake
from tests.engine.worker.simulation import VOCAB, Simulation, by_hand, fixed, free, segmented, simulate

MASK = VOCAB  # an id that the served model does not have


def right(seen: Sequence[tuple[int, int]], own: int) -> int:
    """What the served model will say at position `own`, from the tokens in sight before the first mask."""
    known = [token for _, token in sorted(seen)]
    known = known[: known.index(MASK)]
    return by_hand(tuple(known), own + 1 - len(known))[-1]


class RightBlocks(SegmentedFake):
    """Knows the answer, if it sees what it should; what it reads comes out of the caches."""

    def run(self, batch: PackedBatch) -> Logits:
        self.steps.append(batch)
        self._fresh = np.stack([batch.positions, batch.input_ids], axis=1).astype(np.int64)
        seen = self.seen(batch)
        values = np.zeros((len(batch.logit_rows), self.vocab), np.float32)
        for index, row in enumerate(batch.logit_rows):
            pairs = [(int(position), int(token)) for position, token in seen(int(row))]
            values[index, right(pairs, int(batch.positions[row]))] = 10.0
        return Logits.of(values)


class RightPoolBlocks(RightBlocks):
    """The same over one pool."""

    seen = FakeRuntime.seen
    keep = FakeRuntime.keep
    free = FakeRuntime.free


def draft(shapes: ShapeTable, length: int = 4, kind: type[FakeRuntime] = RightBlocks, most: int = 0) -> BlockDraft:
    ticks = iter(range(10**9))
    runtime = kind(replace(shapes, unit=length), shapes.max_past, VOCAB + 1)
    steps = DraftSteps(runtime, CostTable(DRAFT_MS), lambda: next(ticks) / 1e3)
    return BlockDraft(steps, DiffusionSpec(length, MASK), 10**6, VOCAB, most)


def world_with(drafter: BlockDraft, **rules: Any) -> Simulation:
    return simulate(segmented(64, 512), costs=TARGET_MS, drafter=drafter, max_gap_ms=1e6, **rules)


SHAPES = {
    "segmented": (segmented(64, 512), RightBlocks),
    "free pool": (free(64, 512), RightPoolBlocks),
    "variants of one past": (fixed((8, 480), (32, 480)), RightPoolBlocks),
    "variants of one context": (fixed((8, 504), (32, 480)), RightPoolBlocks),
}


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("length", [4, 8])
def test_what_is_left_of_a_block_is_proposed_in_one_step(layout: str, length: int) -> None:
    shapes, kind = SHAPES[layout]
    drafter = draft(shapes, length, kind)
    world = world_with(drafter)
    for index in range(3):
        world.submit(f"r{index}", prompt(20 + index, index), 80)
    world.run()
    for index in range(3):
        assert world.outputs[f"r{index}"] == by_hand(prompt(20 + index, index), 80)
    counters = world.scheduler.counters
    assert counters.draft_accepted == counters.draft_rows > 60
    assert world.tokens_per_step > 2
    # One each, two where 32 rows are too few for all, and the prompts.
    rows = 2 * 3 * length
    assert len(runtime_of(drafter).steps) <= -(-rows // shapes.max_rows) * len(world.runtime.steps) + 3


def test_only_whole_blocks_are_kept_and_no_proposal_leaves_its_block() -> None:
    drafter = draft(segmented(64, 512))
    request = Request("a", prompt(10), SamplingParams(max_tokens=50, temperature=0.0))
    tokens = list(prompt(10))
    for known in range(10, 30):
        assert drafter.reach(known) == 4 - known % 4
        found = drafter.propose([DraftRequest(request, 1, tokens, 4)])
        assert found["a"] == tuple(by_hand(tuple(tokens), 4 - known % 4))
        assert drafter.steps.sequences.unread("a", [*tokens, -1]) == 1 + known % 4
        assert drafter.backlog("a", tokens) == 4
        tokens += by_hand(tuple(tokens), 1)


def test_a_long_prompt_is_read_in_whole_blocks_and_shared_where_a_block_ends() -> None:
    drafter = draft(segmented(64, 512), length=32)
    world = world_with(drafter)
    start = prompt(200)
    for name in ("a", "b"):
        world.submit(name, start, 60)
        world.run()
        assert world.outputs[name] == by_hand(start, 60)
    steps = runtime_of(drafter).steps
    assert all(segment.past % 32 == segment.count % 32 == 0 for batch in steps for segment in batch.segments)
    read = sum(segment.count - 32 for batch in steps for segment in batch.segments)
    assert 192 <= read < 300  # the second one finds what the first has read


def test_a_model_that_is_wrong_changes_nothing_and_is_given_up() -> None:
    drafter = draft(segmented(64, 512), kind=SegmentedFake)
    world = world_with(drafter)
    world.submit("a", prompt(30), 200)
    world.submit("b", prompt(33, 1), 200, temperature=1.3, top_p=0.9, logit_bias=((3, 4.0),))
    world.run()
    plain = simulate(segmented(64, 512), costs=TARGET_MS)
    plain.submit("b", prompt(33, 1), 200, temperature=1.3, top_p=0.9, logit_bias=((3, 4.0),))
    plain.run()
    assert world.outputs == {"a": by_hand(prompt(30), 200), "b": plain.outputs["b"]}
    assert world.scheduler.counters.draft_rows < 100


REQUEST = st.tuples(
    st.integers(0, 2),  # salt: equal salts share prefixes
    st.integers(1, 70),  # prompt length
    st.integers(1, 30),  # max tokens
    st.integers(0, 8),  # step of arrival
    st.one_of(st.none(), st.integers(0, 20)),  # step of cancel
)
WORLDS: dict[str, Callable[[], Simulation]] = {
    "caches": lambda: world_with(draft(segmented(24, 256))),
    "blocks longer than a block": lambda: world_with(draft(segmented(64, 256), length=32)),
    "preempted": lambda: world_with(draft(segmented(24, 256)), columns=128),
    "little room": lambda: world_with(draft(fixed((8, 88), (32, 64)), kind=RightPoolBlocks)),
}


@pytest.mark.parametrize("world_name", WORLDS)
@given(requests=st.lists(REQUEST, min_size=1, max_size=6))
@settings(max_examples=20, deadline=None)
def test_random_arrivals_cancels_and_preemptions(world_name: str, requests: list[tuple[Any, ...]]) -> None:
    world = WORLDS[world_name]()
    limit, step = world.scheduler.rules.capacity.tokens_per_sequence, 0
    while step <= 21 or world.scheduler.has_work:
        for index, (salt, length, budget, arrival, cancel) in enumerate(requests):
            if arrival == step:
                world.submit(f"r{index}", prompt(length, salt), budget)
            if cancel == step:
                world.loop.abort(f"r{index}")
        world.step()
        step += 1
        assert step < 3000
    for index, (salt, length, budget, arrival, cancel) in enumerate(requests):
        whole, got = by_hand(prompt(length, salt), budget, limit=limit), world.outputs[f"r{index}"]
        assert got == whole[: len(got)]
        assert got == whole or (cancel is not None and cancel >= arrival)
    counters = world.scheduler.counters
    assert counters.draft_accepted == counters.draft_rows  # what it sees is always right


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny checkpoint that denoises blocks of 4, and its bundle."""
    folder = tmp_path_factory.mktemp("blocks")
    source = write_sdar(folder / "source", 4, 300)
    arguments = CompileArguments(source, folder / "bundle", quant=Quant.FP32, layout=Layout.SEGMENTS, kv=KvType.FLOAT32)
    compile_bundle(arguments, SilentProgress())
    return source, folder / "bundle"


def test_its_proposals_are_those_of_the_network_by_its_definition(bundles: Bundles, blocks: tuple[Path, Path]) -> None:
    source, bundle = blocks
    eager = EagerBlocks.load(source)
    assembled = assemble(EngineConfig(bundle=str(bundles("segments")), deterministic=True, draft=str(bundle)))
    drafter, seen = assembled.loop._drafter, []
    assert isinstance(drafter, BlockDraft)
    propose = drafter.propose

    def watched(requests: Sequence[DraftRequest]) -> Any:
        found = propose(requests)
        seen.extend((tuple(asked.tokens), asked.count, found.get(asked.request.id, ())) for asked in requests)
        return found

    drafter.propose = watched  # type: ignore[method-assign]
    start = tuple(range(5, 27))
    try:
        params = SamplingParams(max_tokens=20, temperature=0.0)
        assembled.loop.add(Request("a", start, params), (), 1, 0.0)
        while assembled.loop.scheduler.has_work:
            assert not assembled.loop.step().failures
    finally:
        assembled.loop.close()
        assembled.runtime.close()
    assert len(seen) >= 5
    for tokens, count, found in seen:
        masks = 4 - len(tokens) % 4
        logits = eager([*tokens, *[300] * masks], range(len(tokens), len(tokens) + masks))
        logits[:, 300] = -np.inf
        assert list(found) == logits.argmax(axis=1).tolist()[: min(count, masks)]


def test_nothing_is_guessed_for_a_model_that_denoises_blocks(bundles: Bundles, blocks: tuple[Path, Path]) -> None:
    with pytest.raises(BundleError, match=r"draft guesses the next tokens: \S+ denoises blocks of them"):
        assemble(EngineConfig(bundle=str(blocks[1]), draft=str(bundles("segments"))))


def test_its_time_is_one_step_whatever_the_count() -> None:
    drafter = draft(segmented(64, 512))
    assert drafter.proposal_ms(2, 1) == drafter.proposal_ms(2, 4) == CostTable(DRAFT_MS).milliseconds(StepShape(16, 64))
    assert drafter.proposal_ms(2, 0) == 0.0
