"""Texts that become vectors beside sequences that generate: what both get, in steps."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.bundle.variant import ShapeTable, StepShape
from engine.core.kv_queues import PATIENCE
from tests.engine.fake_runtime import expected_token
from tests.engine.worker.simulation import VOCAB, Simulation, by_hand, fixed, free, segmented, simulate

WIDE = 511  # columns enough for all chats of a test at once
TICKS = 90


def prompt(length: int, salt: int) -> tuple[int, ...]:
    draw = random.Random(salt)
    return tuple(draw.randrange(VOCAB) for _ in range(length))


def vector_by_hand(tokens: tuple[int, ...]) -> list[float]:
    """What the fake runtime gives for the last row."""
    numbers = np.zeros(VOCAB)
    numbers[expected_token(list(enumerate(tokens)), VOCAB)] = 10.0
    return [float(number) for number in numbers]


@dataclass
class Chat:
    """One that comes before step `at`."""

    at: int
    prompt: tuple[int, ...]
    answer: int
    seen: list[int] = field(default_factory=list)  # the step of each token


def served(world: Simulation, chats: list[Chat], texts: int, ticks: int = TICKS) -> list[list[int]]:
    """For each chat the step of each token, counted from its coming; all texts are there from the beginning."""
    seen: list[list[int]] = [[] for _ in chats]
    for number in range(texts):
        world.embed(f"text {number}", prompt(5 + number * 7 % 60, 1000 + number))
    for tick in range(ticks):
        for number, chat in enumerate(chats):
            if chat.at == tick:
                world.submit(f"chat {number}", chat.prompt, chat.answer)
        world.step()
        for number, chat in enumerate(chats):
            new = len(world.outputs.get(f"chat {number}", ())) - len(seen[number])
            seen[number] += [tick - chat.at + 1] * new
    return seen


SHAPES: dict[str, tuple[ShapeTable, dict[StepShape, float]]] = {
    "fixed": (fixed((1, WIDE), (8, WIDE - 7), (32, WIDE - 31)), {}),
    "long steps": (
        fixed((1, WIDE), (8, WIDE - 7), (32, WIDE - 31)),
        {StepShape(1, WIDE): 100.0, StepShape(8, WIDE - 7): 200.0, StepShape(32, WIDE - 31): 400.0},
    ),
    "free": (free(32, WIDE + 1), {}),
    "segmented": (segmented(32, WIDE + 1), {}),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_texts_delay_tokens_by_a_bounded_number_of_steps(name: str, seed: int) -> None:
    """A token comes at most a step later for each turn of texts, and turns are rare."""
    shapes, costs = SHAPES[name]
    draw = random.Random(seed)
    chats = [
        Chat(draw.randrange(40), prompt(draw.choice([1, 17, 60]), number), draw.randrange(1, 16))
        for number in range(draw.randrange(1, 6))
    ]
    alone = served(simulate(shapes, costs=costs), chats, 0)
    world = simulate(shapes, costs=costs)
    beside = served(world, chats, 200)
    assert [len(tokens) for tokens in beside] == [len(tokens) for tokens in alone] == [chat.answer for chat in chats]
    for chat, others in zip(alone, beside, strict=True):
        for without, with_texts in zip(chat, others, strict=True):
            assert with_texts <= without + 1 + with_texts // (PATIENCE + 1)
    for number, chat in enumerate(chats):
        assert world.outputs[f"chat {number}"] == by_hand(chat.prompt, chat.answer)
    assert len(world.vectors) > 20
    for number in range(20):
        assert world.vectors[f"text {number}"].tolist() == vector_by_hand(prompt(5 + number * 7 % 60, 1000 + number))


@pytest.mark.parametrize("shapes", [free(64, 1024), segmented(64, 1024)], ids=["pool", "segmented"])
@pytest.mark.parametrize(("asked", "given"), [(12, 12), (40, 16)])
def test_a_step_that_decodes_has_so_many_rows_of_texts(shapes: ShapeTable, asked: int, given: int) -> None:
    """A quarter of its rows at most."""
    world = simulate(shapes, embed_rows=asked)
    for number in range(50):
        world.embed(f"text {number}", prompt(40, number))
    world.step()
    assert len(world.runtime.steps[-1].input_ids) == 64  # nobody else is there
    world.submit("chat", prompt(3, 99), 8)
    for step in range(8):
        world.step()
        rows = int(world.runtime.steps[-1].shape.rows)
        assert rows == (3 if step == 0 else 1) + given
    world.step()
    assert len(world.runtime.steps[-1].input_ids) == 64


def test_texts_take_what_would_be_padding() -> None:
    world = simulate(fixed((32, WIDE)), embed_rows=1)
    world.submit("chat", prompt(3, 99), 8)
    world.step()
    for number in range(50):
        world.embed(f"text {number}", prompt(40, number))
    world.step()
    batch = world.runtime.steps[-1]
    assert batch.starts[0] == 0  # right-aligned, so no row is padding
    assert len(world.outputs["chat"]) == 2


def test_texts_go_on_where_prompts_want_every_row() -> None:
    """Each has its turn: a prompt that never ends keeps them waiting for so many steps and no longer."""
    world = simulate(fixed((8, WIDE)), prefix_cache=False)
    world.submit("chat", prompt(400, 1), 1)
    world.embed("text", prompt(6, 2))
    steps = 0
    while "text" not in world.vectors:
        world.step()
        steps += 1
    assert PATIENCE < steps <= 3 * (PATIENCE + 1)  # two rows a turn, a quarter of the step
    assert not world.outputs["chat"]


def test_who_generates_takes_columns_and_places_from_texts() -> None:
    """It is let in at once, and what it took is computed later."""
    world = simulate(fixed((8, 120)), max_running=3, embed_rows=2)
    for number in range(4):
        world.embed(f"text {number}", prompt(60, number))
    for _ in range(6):
        world.step()
    world.submit("chat", prompt(50, 9), 20)
    world.step()
    assert "chat" in {sequence.id for sequence in world.scheduler.sequences() if sequence.computed}
    world.run()
    assert world.outputs["chat"] == by_hand(prompt(50, 9), 20)
    assert world.scheduler.counters.preemptions > 0
    for number in range(4):
        assert world.vectors[f"text {number}"].tolist() == vector_by_hand(prompt(60, number))


def test_texts_leave_the_columns_that_only_few_rows_span() -> None:
    """While one used them every step would have a row, and prompts would be read one token at a time."""
    shapes = fixed((1, 255), (8, 248), (32, 144))
    world = simulate(shapes, prefix_cache=False)
    world.embed("text", prompt(200, 1))
    for _ in range(6):
        world.step()
    world.submit("chat", prompt(10, 2), 60)
    rows = []
    while not world.outputs["chat"]:
        world.step()
        rows.append(world.runtime.steps[-1].shape.rows)
    assert rows == [32]
    world.run()
    assert world.scheduler.counters.preemptions == 1  # it waits until nobody else is there
    assert world.vectors["text"].tolist() == vector_by_hand(prompt(200, 1))


def test_priority_orders_texts_among_themselves() -> None:
    world = simulate(fixed((8, WIDE)))
    for name, priority in (("later", 5), ("first", -5), ("middle", 0)):
        world.embed(name, prompt(16, priority + 50), priority)
    world.run()
    assert list(world.vectors) == ["first", "middle", "later"]


def test_a_text_that_leaves_gives_its_columns_back() -> None:
    world = simulate(fixed((8, WIDE)), prefix_cache=False)
    world.embed("text", prompt(60, 1))
    world.step()
    world.loop.abort("text")
    assert not world.scheduler.has_work and world.scheduler.blocks.referenced == 0
    world.step()
    assert not world.vectors
