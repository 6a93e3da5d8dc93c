"""The scheduler over fused graphs: one prompt a step, decode slots that rotate, whole caches."""

import pytest

from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from engine.core.build import ModelLimits, build_scheduler
from engine.core.policy import CostTable
from engine.core.sequence import SequenceStatus
from tests.engine.worker.fused_runtime import FusedFake
from tests.engine.worker.simulation import Simulation, by_hand, fused, simulate

CACHE = 128  # columns that hold tokens


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((i * 7 + salt * 13 + 3) % 50 for i in range(length))


def world_of(slots: int, *rows: int, caches: int = 16, costs: dict[StepShape, float] | None = None) -> Simulation:
    return simulate(
        fused(slots, *rows, past=CACHE + 1), costs=costs, columns=caches * CACHE, block=CACHE, prefix_cache=False
    )


def runtime_of(world: Simulation) -> FusedFake:
    assert isinstance(world.runtime, FusedFake)
    return world.runtime


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 7, 8, 15, 16, 31, 100])
def test_one_sequence_is_its_definition(slots: int, length: int) -> None:
    world = world_of(slots, 8, 16)
    world.submit("a", prompt(length), 20)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(length), 20)


@pytest.mark.parametrize(("slots", "clients"), [(1, 6), (3, 11), (4, 3)])
def test_many_sequences_are_their_definitions(slots: int, clients: int) -> None:
    world = world_of(slots, 8, 16)
    for index in range(clients):
        world.submit(f"s{index}", prompt(5 + 9 * index, index), 12 + index)
    world.run()
    for index in range(clients):
        assert world.outputs[f"s{index}"] == by_hand(prompt(5 + 9 * index, index), 12 + index)


def test_the_three_kinds_of_tick() -> None:
    """A prompt alone, a prompt beside a decode, decodes alone: each in the graph of fewest rows that holds it."""
    world = world_of(1, 8, 16)
    world.submit("first", prompt(20), 30)
    world.step()
    world.step()
    world.submit("late", prompt(18, 4), 2)
    for _ in range(4):
        world.step()
    seen = [
        (placed.shape.name, placed.prefill.count if placed.prefill else 0, len(placed.decodes))
        for placed in runtime_of(world).placements
    ]
    pd8, pd16 = "model.0.pd.s8", "model.0.pd.s16"
    assert seen == [(pd16, 15, 0), (pd8, 5, 0), (pd16, 15, 1), (pd8, 3, 1), ("model.0.s1", 0, 1), ("model.0.s1", 0, 1)]
    world.run()


def test_two_prompts_never_share_a_step() -> None:
    world = world_of(3, 16)
    for index in range(5):
        world.submit(f"s{index}", prompt(4, index), 3)
    world.run()  # the runtime refuses a step with two prompts
    assert max(len(batch.segments) for batch in world.runtime.steps) > 1
    assert all(sum(segment.count > 1 for segment in batch.segments) <= 1 for batch in world.runtime.steps)


@pytest.mark.parametrize(("slots", "clients"), [(1, 5), (3, 7), (4, 12)])
def test_slots_rotate_and_the_worst_gap_is_bounded(slots: int, clients: int) -> None:
    """With more sequences than slots each decodes in its turn; prompts beside them cost nobody a turn."""
    world = world_of(slots, 8)
    last: dict[str, int] = {}
    worst = 0
    for step in range(400):
        if step % 5 == 0 and step // 5 < clients:
            world.submit(f"s{step // 5}", prompt(30, step), 60)
        before = {name: len(tokens) for name, tokens in world.outputs.items()}
        if not world.scheduler.has_work:
            continue
        world.step()
        for name, tokens in world.outputs.items():
            if len(tokens) > before[name]:
                worst = max(worst, step - last.get(name, step))
                last[name] = step
    assert not world.scheduler.has_work
    assert 1 < worst <= -(-clients // slots) + 1  # one more for a newcomer that takes a turn of its own
    assert all(len(tokens) == 60 for tokens in world.outputs.values())


def test_a_prompt_is_never_starved_however_dear_its_graph_is() -> None:
    costs = {StepShape(1, CACHE + 1): 10.0, StepShape(2, CACHE + 1): 10.0, StepShape(16, CACHE + 1): 900.0}
    world = world_of(2, 16, costs=costs)
    for index in range(2):
        world.submit(f"chat{index}", prompt(1, index), 100)
    world.step()
    world.submit("late", prompt(28, 9), 2)
    for _ in range(8):
        world.step()
    assert world.outputs["late"]  # two chunks, every other step at the latest
    world.run()
    assert world.outputs["late"] == by_hand(prompt(28, 9), 2)


def test_sequences_wait_for_a_cache_in_their_order() -> None:
    world = world_of(2, 8, caches=3)
    for index in range(9):
        world.submit(f"s{index}", prompt(10, index), 8)
    world.step()
    assert (world.scheduler.running, world.scheduler.gauges().waiting) == (3, 6)
    world.run()
    assert list(world.finishes) == sorted(world.finishes)
    assert all(world.outputs[f"s{index}"] == by_hand(prompt(10, index), 8) for index in range(9))


def test_every_cache_may_be_in_use_at_once() -> None:
    """Nothing is held back for what running sequences may still need: a cache is all they ever will."""
    world = world_of(2, 8, caches=6)
    for index in range(6):
        world.submit(f"s{index}", prompt(10, index), 8)
    world.step()
    assert world.scheduler.running == 6


def test_a_sequence_that_gave_its_cache_back_goes_on() -> None:
    world = world_of(2, 8)
    for index in range(3):
        world.submit(f"s{index}", prompt(10, index), 20)
    for _ in range(12):
        world.step()
    victim = world.scheduler.find("s1")
    assert victim is not None and victim.status is SequenceStatus.DECODE and victim.generated > 3
    world.scheduler._preempt(victim)
    world.run()
    assert world.scheduler.counters.preemptions == 1
    assert all(world.outputs[f"s{index}"] == by_hand(prompt(10, index), 20) for index in range(3))


def test_tokens_of_an_earlier_worker_are_computed_not_repeated() -> None:
    whole = by_hand(prompt(10), 20)
    world = world_of(1, 8)
    world.submit("a", prompt(10), 20, emitted=tuple(whole[:7]))
    world.run()
    assert world.outputs["a"] == whole


def test_generation_ends_when_the_cache_is_full() -> None:
    world = world_of(1, 8)
    world.submit("a", prompt(100), 500)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(100), 500, limit=CACHE + 1)
    with pytest.raises(ValueError, match="129 tokens leave no room in a context of 129"):
        world.submit("long", prompt(129), 1)


def test_prompt_logprobs_take_a_step_for_every_token() -> None:
    """The graph gives logits of one prompt row."""
    world = world_of(2, 8)
    world.submit("chat", prompt(3, 1), 20)
    world.submit("scored", prompt(12), 3, prompt_logprobs=0)
    world.run()
    assert len(world.prompt_logprobs["scored"]) == 11
    assert world.outputs["scored"] == by_hand(prompt(12), 3)
    assert world.outputs["chat"] == by_hand(prompt(3, 1), 20)


def test_what_is_built_shares_guesses_and_offloads_nothing() -> None:
    config = EngineConfig("", kv_slots=4 * CACHE, lookup_rows=4, kv_offload_mb=100)
    scheduler = build_scheduler(fused(2, 8, past=CACHE + 1), CostTable({}), ModelLimits(1000, 64), config)
    rules, pool = scheduler.rules, scheduler.blocks
    assert (pool.block_count, pool.block_size) == (4, CACHE)
    found = rules.config
    assert (found.prefix_cache, found.lookup_rows, found.prediction_rows) == (False, 0, 0)
    assert (rules.offload_blocks, found.reserve_tokens) == (0, 0)
    assert rules.capacity.tokens_per_sequence == CACHE + 1
