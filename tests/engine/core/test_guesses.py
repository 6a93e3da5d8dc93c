"""Guesses in real steps of the fake runtime: which are taken where rows have a price, and that no token changes."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from engine.bundle.variant import StepShape
from engine.core.speculation import Drafter, DraftRequest, PromptLookup
from engine.request import FinishReason, GuessCounts
from tests.engine.worker.simulation import VOCAB, RightGuesses, Simulation, by_hand, fixed, segmented, simulate

CHEAP = {StepShape(1, 64): 20.0, StepShape(64, 64): 83.0}  # a row costs 1 ms
FAIR = {StepShape(1, 64): 20.0, StepShape(64, 64): 398.0}  # 6 ms: one row takes 20, four take 38
DEAR = {StepShape(1, 64): 20.0, StepShape(64, 64): 1280.0}  # 20 ms: two rows take as long as two steps
START = (7, 21, 3, 40, 8, 8, 1)


class WrongGuesses(RightGuesses):
    """Always beside the truth, from the `first`-th token of a sequence to the `last`-th."""

    def __init__(self, first: int = 0, last: int = 10**6) -> None:
        super().__init__()
        self.first, self.last = first, last

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        right = super().propose(tokens, limit)
        is_wrong = self.first <= len(tokens) < self.last
        return tuple((token + 1) % VOCAB for token in right) if is_wrong else right


def world_of(mode: PromptLookup, costs: dict[StepShape, float], rows: int = 4, max_rows: int = 64) -> Simulation:
    return simulate(segmented(max_rows, 1024), lookup=mode, costs=costs, lookup_rows=rows, max_gap_ms=1e6)


def test_where_rows_are_cheap_right_guesses_save_steps() -> None:
    world = world_of(RightGuesses(), CHEAP)
    world.submit("a", START, 121)
    world.run()
    assert world.outputs["a"] == by_hand(START, 121)
    assert len(world.runtime.steps) <= 2 + 120 // 5
    counters = world.scheduler.counters
    assert (counters.lookup_rows, counters.lookup_accepted) == (counters.drafted_rows, counters.accepted_rows)
    assert counters.accepted_rows == 121 - len(world.runtime.steps)


def test_where_a_row_costs_as_much_as_a_step_nothing_is_guessed() -> None:
    world = world_of(RightGuesses(), DEAR)
    world.submit("a", START, 121)
    world.run()
    assert world.outputs["a"] == by_hand(START, 121)
    assert world.scheduler.counters.drafted_rows == 0


def test_wrong_guesses_stop_by_themselves_and_are_tried_now_and_then() -> None:
    world = world_of(WrongGuesses(), FAIR)
    world.submit("a", START, 600)
    world.run()
    assert world.outputs["a"] == by_hand(START, 600)
    guessed = [number for number, batch in enumerate(world.runtime.steps) if batch.segments[0].count > 1 and number]
    assert 5 <= len(guessed) <= 16
    assert max(guessed) > 300  # also late
    assert world.scheduler.counters.drafted_rows <= 25


def test_guesses_that_turn_right_are_taken_again() -> None:
    world = world_of(WrongGuesses(last=200), FAIR)
    world.submit("a", START, 500)
    world.run()
    assert world.outputs["a"] == by_hand(START, 500)
    # 193 steps without a right guess, then hardly more than one in five after a pause.
    assert len(world.runtime.steps) < 193 + 300 // 4 + 40


def test_while_rows_of_prompts_wait_none_is_guessed() -> None:
    world = world_of(RightGuesses(), CHEAP, max_rows=16)
    world.submit("a", START, 200)
    for _ in range(3):
        world.step()
    before = world.scheduler.counters.drafted_rows
    assert before > 0
    world.submit("b", tuple((3 * index) % 50 for index in range(160)), 1)
    while not world.outputs["b"]:
        late = world.scheduler.find("b")
        assert late is not None
        are_waiting = late.rows_wanted > 16
        world.step()
        assert world.runtime.steps[-1].segments[-1].count == 1 or not are_waiting
    assert world.scheduler.counters.drafted_rows <= before + 4
    world.run()
    assert world.outputs["a"] == by_hand(START, 200)
    assert world.scheduler.counters.drafted_rows > before


def test_many_decodes_leave_no_time_for_guesses_of_doubtful_worth() -> None:
    def drafted(sequences: int) -> float:
        world = world_of(WrongGuesses(first=30), FAIR, rows=1)
        for index in range(sequences):
            world.submit(f"r{index}", (*START, index), 20)
        world.run()
        for index in range(sequences):
            assert world.outputs[f"r{index}"] == by_hand((*START, index), 20)
        return world.scheduler.counters.drafted_rows / sequences

    assert drafted(24) < drafted(1) / 2


def test_a_wider_variant_of_the_same_past_is_used_for_guesses_where_it_pays() -> None:
    costs = {StepShape(1, 256): 10.0, StepShape(8, 256): 12.0}
    world = simulate(fixed((1, 256), (8, 256)), lookup=RightGuesses(), costs=costs, lookup_rows=6, max_gap_ms=1e6)
    world.submit("a", START, 121)
    world.run()
    assert world.outputs["a"] == by_hand(START, 121)
    assert len(world.runtime.steps) < 30


class Reader(Drafter):
    """A draft model that has the whole prompt to read, which takes so many milliseconds; it notes what is asked."""

    most = 4

    def __init__(self, reading: float) -> None:
        self.reading = reading
        self.asked = 0

    def reach(self, tokens: int) -> int:
        return self.most

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        return len(tokens)

    def is_long(self, backlog: int) -> bool:
        return True

    def reading_ms(self, tokens: int) -> float:
        return self.reading

    def propose(self, requests: Sequence[DraftRequest]) -> Mapping[str, tuple[int, ...]]:
        self.asked += len(requests)
        return {}


def test_reading_a_prompt_for_the_draft_is_paid_for_by_what_may_still_come() -> None:
    """A step takes 20 ms, and no more for four guesses: five tokens to come are not worth 200."""

    def asked(reading: float, tokens: int) -> int:
        drafter = Reader(reading)
        world = simulate(segmented(64, 1024), costs=CHEAP, drafter=drafter, max_gap_ms=1e6)
        world.submit("a", START, tokens)
        world.step()
        world.step()
        return drafter.asked

    assert asked(0.0, 6) > 0 and asked(200.0, 500) > 0
    assert asked(200.0, 6) == 0


def predicted(
    prediction: tuple[int, ...], costs: dict[StepShape, float] | None = CHEAP, **fields: object
) -> Simulation:
    world = simulate(segmented(64, 1024), costs=costs, max_gap_ms=1e6)
    world.submit("a", START, 100, prediction=prediction, **fields)
    world.run()
    return world


def test_a_prediction_that_is_right_saves_steps_without_any_setting() -> None:
    world = predicted(tuple(by_hand(START, 100)))
    assert world.outputs["a"] == by_hand(START, 100)
    assert len(world.runtime.steps) < 20
    counters = world.scheduler.counters
    assert counters.prediction_accepted == counters.accepted_rows == 100 - len(world.runtime.steps)
    assert world.guesses["a"] == GuessCounts(
        counters.drafted_rows, counters.accepted_rows, counters.prediction_rows, counters.prediction_accepted
    )


def test_behind_what_differs_from_the_prediction_its_rest_is_found_again() -> None:
    right = by_hand(START, 100)
    edited = (*right[:20], 1, 2, 3, *right[24:60], *right[66:])
    world = predicted(edited)
    assert world.outputs["a"] == right
    assert world.scheduler.counters.prediction_accepted > 60
    assert len(world.runtime.steps) < 40


def test_a_prediction_that_is_wrong_changes_nothing_and_costs_little() -> None:
    world = predicted(tuple(range(50)) * 3, FAIR)
    assert world.outputs["a"] == by_hand(START, 100)
    assert world.scheduler.counters.prediction_rows < 30


def test_a_stop_token_inside_a_prediction_ends_there() -> None:
    right = by_hand(START, 100)
    stop = right[33]
    world = predicted(tuple(right), stop_token_ids=(stop,))
    assert world.outputs["a"] == right[: right.index(stop) + 1]
    assert world.finishes["a"] is FinishReason.STOP


def test_without_prices_and_padding_nothing_is_taken_from_a_prediction() -> None:
    world = predicted(tuple(by_hand(START, 100)), None)
    assert world.outputs["a"] == by_hand(START, 100)
    assert world.scheduler.counters.prediction_rows == 0


def drawn(guessing: bool, sequences: int = 400) -> tuple[dict[str, list[int]], int]:
    mode, rows = (RightGuesses(), 3) if guessing else (None, 0)
    world = simulate(fixed((256, 1024)), lookup=mode, lookup_rows=rows, max_running=64)
    for seed in range(sequences):
        world.submit(f"s{seed}", START, 4, temperature=3.0, drawn=seed)
    world.run()
    return world.outputs, world.scheduler.counters.accepted_rows


def test_sampled_tokens_are_the_same_with_guesses_and_without_and_have_their_distribution() -> None:
    """The likeliest of 50 tokens has logit 10 and the others 0, at temperature 3."""
    plain, _ = drawn(guessing=False)
    guessed, accepted = drawn(guessing=True)
    assert guessed == plain
    assert accepted > 100
    share = np.exp(10 / 3) / (np.exp(10 / 3) + VOCAB - 1)
    for place in range(4):
        likeliest = sum(tokens[place] == by_hand((*START, *tokens[:place]), 1)[0] for tokens in guessed.values()) / len(
            guessed
        )
        assert likeliest == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / len(guessed)))
