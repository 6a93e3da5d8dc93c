"""Keys and values are written beside the loop: all that is kept, nothing twice, before the next pass reads them."""

from dataclasses import replace

import numpy as np
import pytest

from engine.bundle.encoding import Encoding
from engine.bundle.variant import PassShape
from engine.grammar.masks import GrammarMasks
from engine.graphs.batch import PackedBatch, pack
from engine.graphs.fake_runtime import POISON
from engine.graphs.logits import Logits
from engine.request import Denoising, Unmasking
from engine.scheduling.plan import Segment, StepPlan
from engine.worker.kv_writer import KvWriter, certain_rows, harmless_rows
from tests.engine.grammar.small_tokens import OnDemand, grammar, inline_masks
from tests.engine.worker.simulation import RightGuesses, Simulation, by_hand, fixed, no_tokenizer, sequence_of, simulate

U16 = Encoding("uint16", 0.001, 3)


class Noted:
    """A runtime that notes what it is told to keep."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, list[int], list[int]]] = []

    def keep(self, pool: int, rows: np.ndarray, columns: np.ndarray) -> None:
        if columns.max() > 1000:
            raise ValueError("no such column")
        self.kept.append((pool, rows.tolist(), columns.tolist()))


def plan_of(*segments: tuple[str, int, int, int]) -> StepPlan:
    """Of each sequence its id, its rows, how many of them are sampled, its first column."""
    made = [
        Segment(sequence_of(name), (7,) * rows, 0, (), 0, tuple(range(first, first + rows)), sampled)
        for name, rows, sampled, first in segments
    ]
    return StepPlan(PassShape(16, 64), 1, tuple(made))


PLAN = plan_of(("prompt", 4, 0, 32), ("guessing", 3, 3, 8), ("plain", 1, 1, 50))


def test_guesses_and_sequences_with_a_grammar_are_not_certain() -> None:
    assert certain_rows(PLAN, GrammarMasks(no_tokenizer)) == {"prompt": 4, "guessing": 1, "plain": 1}
    masks = inline_masks()
    masks.open("plain", grammar(), ())
    assert certain_rows(PLAN, masks) == {"prompt": 4, "guessing": 1}


def test_all_rows_with_columns_of_their_own_are_harmless() -> None:
    """Guesses and what a grammar may refuse too: nothing sees their columns before they are kept."""
    assert harmless_rows(PLAN) == {"prompt": 4, "guessing": 3, "plain": 1}


def test_what_was_written_early_is_not_written_again() -> None:
    runtime = Noted()
    writer = KvWriter(runtime, None)  # type: ignore[arg-type]
    batch = pack(PLAN, 16)
    early = {"prompt": 4, "guessing": 1, "plain": 1}
    writer.write(PLAN, batch, early)
    writer.write(PLAN, batch, {"prompt": 4, "guessing": 3, "plain": 1}, early)
    writer.write(PLAN, batch, early, early)
    writer.wait()
    writer.write_now(PLAN, batch, {})
    assert runtime.kept == [(1, [8, 9, 10, 11, 12, 15], [32, 33, 34, 35, 8, 50]), (1, [13, 14], [9, 10])]
    writer.close()


def test_what_goes_wrong_is_raised_by_who_waits() -> None:
    writer = KvWriter(Noted(), None)  # type: ignore[arg-type]
    plan = plan_of(("far", 1, 1, 5000))
    writer.write(plan, pack(plan, 16), {"far": 1})
    with pytest.raises(ValueError, match="no such column"):
        writer.wait()
    writer.close()


def quantised(world: Simulation) -> None:
    """Have the fake runtime give integer codes, as NPU graphs do: then rows are written before they are sampled."""
    run = world.runtime.run

    def coded(batch: PackedBatch) -> Logits:
        return Logits(U16.encode(run(batch).decoded().astype(np.float64)), U16)

    world.runtime.run = coded  # type: ignore[method-assign]


@pytest.mark.parametrize("lookup", [0, 3])
def test_integer_logits_give_the_same_answers(lookup: int) -> None:
    world = simulate(fixed((4, 92), (16, 96)), mode=RightGuesses() if lookup else None, lookup_rows=lookup)
    quantised(world)
    prompts = {f"s{i}": tuple((i * 11 + j) % 50 for j in range(18 + 3 * i)) for i in range(6)}
    for name, tokens in prompts.items():
        world.submit(name, tokens, 15)
    world.run()
    assert world.outputs == {name: by_hand(tokens, 15) for name, tokens in prompts.items()}


def test_of_integer_logits_only_what_is_settled_is_written_early() -> None:
    denoising = Denoising(4, 49, 2, Unmasking.STATIC_CONFIDENCE)
    prompts = {f"s{length}": tuple((length * 11 + j) % 49 for j in range(length)) for length in (3, 8, 21)}
    found = []
    for is_quantised in (False, True):
        world = simulate(replace(fixed((8, 88), (32, 64)), unit=4))
        if is_quantised:
            quantised(world)
        for name, tokens in prompts.items():
            world.submit(name, tokens, 14, denoising=denoising)
        world.run()
        found.append(world.outputs)
        kept = world.runtime._pools[0]
        assert 49 not in kept[:, 1]
    assert found[0] == found[1] and all(len(tokens) == 14 for tokens in found[0].values())


def test_the_next_pass_waits_for_what_is_written() -> None:
    """The executor does nothing until somebody runs it, so a loop that did not wait would read poison."""
    world = simulate(fixed((8, 120)))
    quantised(world)
    late = OnDemand()
    world.loop._writer = KvWriter(world.runtime, late)
    wait = world.loop._writer.wait
    waits: list[int] = []

    def watched() -> None:
        late.run()
        waits.append(len(world.runtime.passes))
        wait()

    world.loop._writer.wait = watched  # type: ignore[method-assign]
    world.submit("a", (1, 2, 3), 6)
    world.run()
    assert world.outputs["a"] == by_hand((1, 2, 3), 6)
    assert waits == list(range(7))  # before every pass, and before its pages are freed


def test_of_a_pass_that_fails_nothing_is_written() -> None:
    world = simulate(fixed((8, 120)))
    quantised(world)
    world.runtime.fail_at = 0
    world.submit("a", (1, 2, 3), 6)
    world.run()
    assert list(world.failures) == ["a"]
    assert (world.runtime._pools == POISON).all()


def test_rows_that_are_not_finite_are_not_written_early() -> None:
    world = simulate(fixed((8, 120)))
    quantised(world)
    world.submit("good", (1, 2, 3), 6)
    world.submit("bad", (4, 5), 6)
    world.runtime.damage = frozenset({7})
    world.run()
    assert len(world.failures) == 1
    (lost,) = world.failures
    kept = {int(token) for token in world.runtime._pools[0][:, 1] if token != POISON}
    assert not kept & ({4, 5} if lost == "bad" else {1, 2, 3})


def test_scored_rows_of_a_prompt_without_an_answer_are_written_as_before() -> None:
    world = simulate(fixed((8, 120)))
    quantised(world)
    world.submit("a", tuple(range(20)), 0, prompt_logprobs=0)
    world.run()
    assert len(world.prompt_logprobs["a"]) == 19 and world.outputs["a"] == []
