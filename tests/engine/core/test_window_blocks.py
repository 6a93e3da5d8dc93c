"""Blocks of layers with a window: what a prefix needs, what gives way, and prefixes that have lost their window."""

from engine.core.window_blocks import WindowBlocks
from tests.engine.worker.simulation import Simulation, by_hand, segmented, simulate

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
