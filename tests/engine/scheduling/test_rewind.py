"""A live sequence goes back to an earlier token, and the same tokens come again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle.variant import ShapeTable
from engine.scheduling.invariants import violations
from engine.scheduling.sequence import SequenceStatus
from tests.engine.worker.simulation import RightGuesses, Simulation, by_hand, fixed, segmented, simulate

SHAPES = {"pool": fixed((8, 120), (1, 127)), "segments": segmented(32, 512)}
PROMPT = tuple(range(3, 40))


def world_of(kind: str, **rules: object) -> Simulation:
    return simulate(SHAPES[kind], **rules)


def steps_until(world: Simulation, name: str, tokens: int) -> None:
    while len(world.outputs[name]) < tokens:
        world.step()


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("back_to", [0, 1, 10, 11, 12, 27, 28, 30])
def test_the_continuation_is_the_same(kind: str, prefix_cache: bool, back_to: int) -> None:
    world = world_of(kind, prefix_cache=prefix_cache)
    world.submit("a", PROMPT, 60)
    world.submit("neighbour", PROMPT[:20], 60)
    steps_until(world, "a", 30)
    world.loop.rewind("a", back_to)
    del world.outputs["a"][back_to:]
    assert world.loop.checkpoint("a") == back_to
    world.run()
    assert world.outputs["a"] == by_hand(PROMPT, 60)
    assert world.outputs["neighbour"] == by_hand(PROMPT[:20], 60)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_page_that_others_may_find_is_not_written_again(kind: str) -> None:
    world = world_of(kind)
    world.submit("a", PROMPT, 60)
    steps_until(world, "a", 30)
    (sequence,) = world.scheduler.sequences()
    keys = list(sequence.keys)
    world.loop.rewind("a", 15)  # 52 tokens, in the middle of the fourth page
    assert sequence.computed == 48 and sequence.keys == keys[:3]
    del world.outputs["a"][15:]
    world.run()
    world.submit("again", (*PROMPT, *by_hand(PROMPT, 28)), 20)
    world.run()
    assert world.cached["again"] == 64
    assert world.outputs["again"] == by_hand(PROMPT, 48)[28:]


def test_computed_columns_are_kept() -> None:
    world = world_of("pool", prefix_cache=False)
    world.submit("a", PROMPT, 60)
    steps_until(world, "a", 30)
    (sequence,) = world.scheduler.sequences()
    before = world.loop.stats().rows_used
    world.loop.rewind("a", 12)
    assert (sequence.computed, sequence.status, len(sequence.pages)) == (48, SequenceStatus.DECODE, 3)
    world.step()
    assert world.loop.stats().rows_used == before + 1


def test_pages_that_others_hold_too_may_be_missing() -> None:
    """Every page is in use and the cut one is shared: the sequence waits and is computed again."""
    world = simulate(fixed((8, 64), (1, 64)))
    world.submit("a", PROMPT[:31], 30)
    steps_until(world, "a", 3)
    world.submit("b", (*PROMPT[:31], *by_hand(PROMPT[:31], 1), 7), 3)
    world.step()
    world.loop.rewind("a", 0)
    del world.outputs["a"][:]
    world.run()
    assert world.outputs["a"] == by_hand(PROMPT[:31], 30)


def test_what_cannot_be_gone_back_to() -> None:
    world = world_of("pool")
    world.submit("a", PROMPT, 9)
    steps_until(world, "a", 3)
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"a has 3 tokens, it cannot go back to {wrong}"):
            world.loop.rewind("a", wrong)
    world.run()
    with pytest.raises(ValueError, match="no live sequence a"):
        world.loop.rewind("a", 0)
    with pytest.raises(ValueError, match="no live sequence a"):
        world.loop.checkpoint("a")
    assert world.outputs["a"] == by_hand(PROMPT, 9)


def test_one_that_waits() -> None:
    world = simulate(fixed((8, 120)), max_running=1)
    world.submit("first", (1, 2, 3), 5)
    world.submit("a", PROMPT, 9, emitted=by_hand(PROMPT, 5))
    world.step()
    world.loop.rewind("a", 2)
    del world.outputs["a"][2:]
    world.run()
    assert world.outputs["a"] == by_hand(PROMPT, 9)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["step", "step", "submit", "rewind"]), st.integers(0, 7), st.integers(0, 50)),
    min_size=10,
    max_size=60,
)


@settings(max_examples=60)
@given(
    actions=ACTIONS,
    shapes=st.sampled_from([fixed((8, 96), (1, 103)), segmented(16, 96), fixed((4, 64), (8, 32))]),
    offload=st.sampled_from([0, 6]),
    lookup=st.sampled_from([0, 3]),
)
def test_at_any_time_and_with_columns_running_out(
    actions: list[tuple[str, int, int]], shapes: ShapeTable, offload: int, lookup: int
) -> None:
    """Prompts share beginnings, sequences give way to others, guesses are right: tokens stay those by hand."""
    rules = {"offload_pages": 0 if shapes.segmented else offload, "lookup_rows": lookup}
    world = simulate(shapes, mode=RightGuesses() if lookup else None, max_context=60, **rules)
    prompts: dict[str, tuple[int, ...]] = {}
    for kind, who, number in actions:
        name = f"s{who}"
        live = {sequence.id for sequence in world.scheduler.sequences()}
        if kind == "step":
            world.step()
        elif kind == "submit" and name not in prompts:
            prompts[name] = (*range(1, 18 + who % 2), *range(number % 9))
            world.submit(name, prompts[name], 20)
        elif kind == "rewind" and name in live:
            back_to = min(number, world.loop.checkpoint(name))
            world.loop.rewind(name, back_to)
            del world.outputs[name][back_to:]
            assert list(violations(world.scheduler)) == []
    world.run()
    assert world.outputs == {name: by_hand(prompt, 20, limit=60) for name, prompt in prompts.items()}
