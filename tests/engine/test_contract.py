"""What a single request may rely on, step by step, on a window of 128 and on real graphs."""

import logging

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest, verify_hashes
from engine.bundle.variant import ShapeTable, StepShape, shape_table
from engine.core.plan import Segment, StepPlan
from engine.request import FinishReason
from engine.runtime.interface import pack
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.sessions import cpu_provider
from tests.bundles import Bundles
from tests.engine.fake_runtime import visible
from tests.engine.worker.simulation import Simulation, by_hand, fixed, free, sequence_of, simulate

WINDOW = fixed((1, 127), (128, 127))


def prompt(length: int) -> tuple[int, ...]:
    return tuple((i * 11 + 5) % 50 for i in range(length))


@pytest.mark.parametrize("length", [1, 2, 63, 100, 111])
def test_prompts_shorter_than_the_chunk_go_on_until_the_window_is_full(length: int) -> None:
    world = simulate(WINDOW)
    limit = world.scheduler.rules.capacity.tokens_per_sequence
    world.submit("a", prompt(length), 1000)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(length), 1000, limit=limit)
    assert length + len(world.outputs["a"]) == limit
    assert world.finishes["a"] is FinishReason.LENGTH


def test_one_token_of_room_gives_one_token() -> None:
    world = simulate(WINDOW)
    limit = world.scheduler.rules.capacity.tokens_per_sequence
    world.submit("a", prompt(limit - 1), 1000)
    world.run()
    assert world.outputs["a"] == by_hand(prompt(limit - 1), 1)


@pytest.mark.parametrize(("length", "message"), [(0, "empty"), (113, "113 tokens leave no room"), (5000, "no room")])
def test_prompt_length_is_checked_before_anything_runs(length: int, message: str) -> None:
    world = simulate(WINDOW)
    with pytest.raises(ValueError, match=message):
        world.submit("a", prompt(length), 5)
    assert not world.scheduler.has_work and not world.runtime.steps


def test_decode_is_one_row_the_newest_token_at_the_next_position() -> None:
    world = simulate(WINDOW)
    world.submit("a", prompt(10), 8)
    world.step()
    while world.scheduler.has_work:
        sequence = world.scheduler.find("a")
        assert sequence is not None
        newest, length = sequence.tokens[-1], len(sequence.tokens)
        assert sequence.computed == length - 1
        world.step()
        batch = world.runtime.steps[-1]
        assert batch.shape.rows == 1
        assert (batch.input_ids.tolist(), batch.positions.tolist()) == ([newest], [length - 1])
        assert int(visible(batch).sum()) == length  # every cached token and itself, nothing else
        assert len(sequence.tokens) == length + 1


GENIE = fixed((1, 4095), (8, 4088), (64, 4032))  # 1, 8 and 64 rows on a key axis of 4096
GENIE_COSTS = {StepShape(1, 4095): 40.0, StepShape(8, 4088): 41.0, StepShape(64, 4032): 48.0}


def step(world: Simulation) -> tuple[str, int, int]:
    """Run one step of one sequence: its shape, the cached tokens it sees, the tokens it adds."""
    world.step()
    batch = world.runtime.steps[-1]
    (first,) = batch.starts
    return str(batch.shape), int(visible(batch)[first, : batch.shape.past].sum()), batch.shape.rows - first


CHUNKS = [("ar64_cl4096", 0, 64), ("ar64_cl4096", 64, 64), ("ar64_cl4096", 128, 64), ("ar8_cl4096", 192, 8)]


@pytest.mark.parametrize(
    ("length", "steps"), [(50, [("ar64_cl4096", 0, 50), ("ar1_cl4096", 50, 1)]), (200, CHUNKS)], ids=["50", "200"]
)
def test_steps_of_a_prompt_on_1_8_and_64_rows(length: int, steps: list[tuple[str, int, int]]) -> None:
    world = simulate(GENIE, costs=GENIE_COSTS)
    world.submit("a", prompt(length), 2)
    assert [step(world) for _ in steps] == steps


@pytest.mark.parametrize("shapes", [fixed((8, 240)), free(32, 256)], ids=["fixed", "free"])
def test_any_earlier_token_is_a_checkpoint(shapes: ShapeTable) -> None:
    """What is sent again up to any token goes on as it did; only what fills no block before it is computed again."""
    world = simulate(shapes)
    world.submit("whole", prompt(20), 60)
    world.run()
    tokens = (*prompt(20), *world.outputs["whole"])
    for back in range(len(tokens) - 1, 0, -1):
        world.submit(f"to {back}", tokens[:back], len(tokens) - back)
        world.run()
        assert world.outputs[f"to {back}"] == by_hand(tokens[:back], len(tokens) - back)
        assert back < 20 or world.outputs[f"to {back}"] == list(tokens[back:])
        assert world.cached[f"to {back}"] == (back - 1) // 16 * 16  # the last token is computed for its logits


def test_every_step_adds_its_tokens_to_the_cache_and_stops_at_its_end() -> None:
    world = simulate(fixed((8, 64)))
    world.submit("a", prompt(20), 1000)
    sequence = world.scheduler.find("a")
    assert sequence is not None
    while world.scheduler.has_work:
        blocks, before = list(sequence.blocks), sequence.computed
        world.step()
        blocks = list(sequence.blocks) or blocks  # given back at the end
        added = world.runtime.steps[-1].shape.rows - world.runtime.steps[-1].starts[0]
        assert sequence.computed == before + added <= world.scheduler.rules.capacity.slots
        columns = [blocks[index // 16] * 16 + index % 16 for index in range(sequence.computed)]
        cached = world.runtime._pool[columns].tolist()
        assert cached == [[index, token] for index, token in enumerate(sequence.tokens[: sequence.computed])]
    assert (sequence.computed, sequence.finish) == (64, FinishReason.LENGTH)


def test_columns_are_filled_in_order_and_never_moved() -> None:
    world = simulate(fixed((8, 127)))
    world.submit("a", prompt(30), 40)
    seen: list[int] = []
    while world.scheduler.has_work:
        sequence = world.scheduler.find("a")
        world.step()
        assert sequence is not None
        assert sequence.blocks[: len(seen)] == seen or not sequence.blocks
        seen = list(sequence.blocks) or seen
    assert seen == sorted(seen)


def test_counts_without_columns_are_refused() -> None:
    segment = Segment(sequence_of("a"), (1,), 40, (0, 1), 40, (40,), 1)
    with pytest.raises(AssertionError, match="8 cached columns have no block"):
        pack(StepPlan(StepShape(1, 64), (segment,)), 16)


def test_debug_log_tells_every_step(caplog: pytest.LogCaptureFixture) -> None:
    world = simulate(WINDOW)
    world.submit("a", prompt(5), 3)
    with caplog.at_level(logging.DEBUG, "hexserve.worker"):
        world.run()
    lines = [record.message for record in caplog.records]
    first, second, third = by_hand(prompt(5), 3)
    assert lines[0] == "step 1: ar128_cl255, 5 of 128 rows used"
    assert lines[1] == (
        f"prefill a: rows 5 at position 0, last input {prompt(5)[-1]}, output [{first}], length 6, cached 5"
    )
    assert lines[3] == f"decode a: rows 1 at position 5, last input {first}, output [{second}], length 7, cached 6"
    assert lines[-1] == "end a: length, 3 generated, length 8, room for 105 more"
    assert third == world.outputs["a"][-1]


def test_many_requests_leave_nothing_behind() -> None:
    world = simulate(free(64, 256), offload_blocks=4)
    for index in range(300):
        world.submit(f"r{index}", tuple((index * 3 + i) % 50 for i in range(1 + index % 40)), 1 + index % 7)
        if index % 3 == 0:
            world.scheduler.abort(f"r{index}")
        world.step()
    world.run()
    assert not world.scheduler.sequences()
    assert world.scheduler.blocks.referenced == 0
    assert len(world.runtime._host_cache) <= 4


def real(bundles: Bundles, layout: str) -> OnnxRuntime:
    manifest = load_manifest(bundles(layout))
    return OnnxRuntime(bundles(layout), manifest, shape_table(manifest, 32), cpu_provider(1))


def test_keep_writes_every_layer_and_no_other_column(bundles: Bundles) -> None:
    runtime = real(bundles, "fixed")
    segment = Segment(sequence_of("a"), (3, 4, 5), 0, (), 0, (20, 21, 22), 1)
    batch = pack(StepPlan(StepShape(8, 56), (segment,)), 16)
    runtime.run(batch)
    pool = runtime._pool.columns
    pool.keys[...], pool.values[...] = 5.0, 6.0
    runtime.keep(np.array([5, 6, 7]), np.array([20, 21, 22]))
    written = np.zeros(pool.width, bool)
    written[20:23] = True
    assert ((pool.keys != 5.0).all(axis=(1, 2, 3)) == written).all()  # [L, P]: the same columns in every layer
    assert ((pool.values != 6.0).all(axis=(1, 2, 4)) == written).all()
    assert (pool.keys[..., ~written] == 5.0).all() and (pool.values[..., ~written, :] == 6.0).all()


def test_a_column_the_pool_does_not_have_is_refused(bundles: Bundles) -> None:
    runtime = real(bundles, "fixed")
    segment = Segment(sequence_of("a"), (3, 4, 5), 0, (), 0, (0, 1, 2), 1)
    runtime.run(pack(StepPlan(StepShape(8, 56), (segment,)), 16))
    with pytest.raises(AssertionError, match="column 128 of a pool of 127"):
        runtime.keep(np.array([5]), np.array([128]))


def test_a_run_changes_no_file_and_no_byte_of_the_pool(bundles: Bundles) -> None:
    runtime = real(bundles, "fixed")
    segment = Segment(sequence_of("a"), (3, 4, 5), 0, (), 0, (0, 1, 2), 1)
    batch = pack(StepPlan(StepShape(8, 56), (segment,)), 16)
    runtime.run(batch)
    before = (runtime._pool.columns.keys.copy(), runtime._pool.columns.values.copy())
    runtime.run(batch)
    assert (runtime._pool.columns.keys == before[0]).all() and (runtime._pool.columns.values == before[1]).all()
    assert verify_hashes(bundles("fixed"), load_manifest(bundles("fixed"))) == []


def test_two_models_coexist(bundles: Bundles) -> None:
    segment = Segment(sequence_of("a"), (3, 4, 5), 0, (), 0, (0, 1, 2), 1)
    batch = pack(StepPlan(StepShape(8, 56), (segment,)), 16)
    first, second = real(bundles, "fixed"), real(bundles, "free int8")
    alone = first.run(batch).decoded().copy()
    second.run(batch)
    second.close()
    assert (first.run(batch).decoded() == alone).all()
