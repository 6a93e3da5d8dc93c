"""Blocks of layers with a window: what a prefix needs, what gives way, and prefixes that have lost their window."""

from engine.config import EngineConfig
from engine.core.build import ModelLimits, build_scheduler
from engine.core.kv_blocks import Sight
from engine.core.policy import CostTable
from engine.core.window_blocks import WindowBlocks
from tests.engine.worker.simulation import Simulation, by_hand, fixed, segmented, simulate

PROMPT = tuple(range(40)) * 3
OTHER = (*PROMPT[:70], 5, 6)


def test_a_prefix_is_good_as_far_as_its_last_window_is_there() -> None:
    windows = WindowBlocks(window=20, block_size=16, limit=10, rows=8)
    windows.hold(range(6))
    assert windows.usable(range(6)) == 6
    windows.release((0, 1, 2), known={1, 2})
    assert windows.take_dropped() == {0}
    assert windows.usable(range(6)) == 6  # the row behind 96 columns sees 77 and on: blocks 4 and 5
    windows.release((4, 5), known=())
    assert windows.usable(range(6)) == 4  # columns 45 and on
    assert windows.usable((0, 1, None, None)) == 0


def test_what_was_let_go_first_gives_way_first() -> None:
    windows = WindowBlocks(window=16, block_size=16, limit=4, rows=1)
    windows.hold((0, 1, 2, 3))
    windows.release((1, 0, 2), known={0, 1, 2})
    windows.hold((7, 8))
    assert (windows.held, windows.kept, windows.take_dropped()) == (3, 1, {0, 1})
    assert windows.has_room(1) and not windows.has_room(2)


def test_a_block_without_contents_has_nothing_to_drop() -> None:
    windows = WindowBlocks(window=16, block_size=16, limit=4, rows=1)
    windows.hold((0, 1, 2))
    windows.release((0, 1, 2), known={2})
    windows.forget((1, 2))
    assert (windows.kept, windows.take_dropped()) == (0, {0})


def world(**rules: object) -> Simulation:
    return simulate(segmented(16, 512), window=20, **{"window_blocks": 40, **rules})


def test_another_goes_on_from_a_prefix_while_its_window_is_there() -> None:
    run = world()
    run.submit("a", PROMPT, 30)
    run.run()
    run.submit("b", OTHER, 4)
    run.run()
    assert (run.cached["b"], run.outputs["b"]) == (64, by_hand(OTHER, 4))


def test_a_prefix_whose_window_is_gone_is_computed_again_and_then_there() -> None:
    """The other layers' blocks are cached all the same: the newcomer's take their place."""
    run = world(window_blocks=5)
    run.submit("a", PROMPT, 30)
    run.run()
    for name, cached in (("b", 0), ("c", 64)):
        run.submit(name, OTHER, 4)
        run.run()
        assert (run.cached[name], run.outputs[name]) == (cached, by_hand(OTHER, 4))


def test_a_prefix_may_have_lost_all_but_its_last_window() -> None:
    sight = Sight(window=20, block_size=16, rows=8)
    assert sight.usable([False, False, False, True, True, True]) == 6  # the row behind 96 columns sees 77 and on
    assert sight.usable([False, True, True, True, False, True]) == 4
    assert sight.usable([True, False, False]) == 1
    assert sight.usable([False, True, False]) == 0


def test_where_all_layers_have_a_window_a_sequence_outgrows_its_pool_beside_others() -> None:
    world = simulate(fixed((8, 120)), window=20)
    most, long = world.scheduler._pool.sight.most, PROMPT * 3
    world.submit("long", long, 500)
    for index in range(12):
        world.submit(f"short{index}", PROMPT[index:70], 40)
    while world.scheduler.has_work:
        world.step()
        assert all(len(each.blocks) - each.freed <= most == 3 for each in world.scheduler.sequences())
    assert world.outputs["long"] == by_hand(long, 500, window=20)
    assert world.outputs["short3"] == by_hand(PROMPT[3:70], 40, window=20)


def test_another_turn_goes_on_from_the_last_window_of_what_outgrew_its_pool() -> None:
    world = simulate(fixed((8, 120)), window=20)
    world.submit("long", PROMPT, 500)
    world.run()
    turn = (*PROMPT, *world.outputs["long"], 7)
    world.submit("turn", turn, 9)
    world.run()
    assert (world.cached["turn"], world.outputs["turn"]) == (608, by_hand(turn, 9, window=20))


def test_a_pool_that_holds_no_window_and_step_ends_its_sequences_as_before() -> None:
    """What falls behind is for others all the same."""
    limits = ModelLimits(max_context=1000, kv_bytes_per_token=1024, window=64, of_all=True)
    found = [
        build_scheduler(fixed((16, columns)), CostTable({}), limits, EngineConfig("")).rules.capacity
        for columns in (80, 112)
    ]
    assert [capacity.tokens_per_sequence for capacity in found] == [81, 1000]
