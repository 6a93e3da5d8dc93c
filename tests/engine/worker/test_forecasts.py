"""Sequences that guess for themselves, driven through the real loop: the text by hand, in fewer steps."""

import random

import numpy as np
import pytest

from engine.bundle.specs import ForecastSpec
from engine.bundle.tensors import Encoding
from engine.bundle.variant import StepShape
from engine.runtime.interface import Logits, PackedBatch
from tests.engine.fake_runtime import FakeRuntime, expected_token
from tests.engine.worker.simulation import BLOCK, VOCAB, Simulation, by_hand, fixed, simulate

FIRST_ID = 1000
SHAPE = ForecastSpec("prefix", BLOCK, FIRST_ID, (3, 2))
SHAPES = ((32, 208), (64, 176))


def forecasting(monkeypatch: pytest.MonkeyPatch, right: float, **options: object) -> Simulation:
    """A model whose forecast rows are right so often, as long as they see their node, and the prefix in its columns."""
    chance, made = random.Random(7), simulate(**{"shapes": fixed(*SHAPES), "forecasts": SHAPE, **options})  # type: ignore[arg-type]
    runtime, plain = made.runtime, FakeRuntime.run
    runtime._pool[:BLOCK] = [[-1, place] for place in range(BLOCK)]  # as nothing else is kept

    def run(batch: PackedBatch) -> Logits:
        logits = plain(runtime, batch).decoded().copy()
        seen = runtime.seen(batch)
        for index, row in enumerate(batch.logit_rows):
            forecast = int(batch.input_ids[row]) - FIRST_ID
            found = seen(int(row)).tolist()
            prefix = [place for position, place in found if position == -1]
            assert prefix == (list(range(BLOCK)) if forecast >= 0 else [])
            if forecast < 0:
                continue
            text = sorted(pair for pair in found if pair[0] >= 0 and pair[1] < FIRST_ID)
            assert [position for position, _ in text] == list(range(len(text)))
            assert batch.positions[row] == len(text) + forecast
            for _ in range(forecast + 2):
                text.append([len(text), expected_token([tuple(pair) for pair in text], VOCAB)])
            logits[index] = 0
            logits[index, text[-1][1] if chance.random() < right else chance.randrange(VOCAB)] = 10
        return Logits.of(logits.astype(np.float32))

    monkeypatch.setattr(runtime, "run", run)
    return made


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_the_text_is_the_same_however_often_guesses_are_right(monkeypatch: pytest.MonkeyPatch, right: float) -> None:
    prompt = tuple(range(3, 20))
    made = forecasting(monkeypatch, right)
    made.submit("a", prompt, 90)
    steps = made.run()
    assert made.outputs["a"] == by_hand(prompt, 90)
    counters = made.scheduler.counters
    assert counters.accepted_rows == 90 - steps and (right or counters.accepted_rows < 25)
    if right == 1.0:  # but for a first step without guesses, and guesses that would repeat a token
        assert steps < 2 + 90 / 3 * 1.15
        assert counters.drafted_rows <= 9 * steps


def test_only_the_newest_token_of_a_tree_may_be_written_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other rows are guesses or forecasts, and its rows are no run of columns."""
    made = forecasting(monkeypatch, 0.8)
    run, keep = made.runtime.run, made.runtime.keep
    codes, early = Encoding("uint16", 0.001, 3), []

    def coded(batch: PackedBatch) -> Logits:
        early.append(len(batch.early_rows()[0]))
        return Logits(codes.encode(run(batch).decoded().astype(np.float64)), codes)

    def kept(rows: np.ndarray, columns: np.ndarray) -> None:
        assert len(rows) == len(columns) == len(set(columns.tolist()))
        keep(rows, columns)

    monkeypatch.setattr(made.runtime, "run", coded)
    monkeypatch.setattr(made.runtime, "keep", kept)
    prompts = {name: tuple(range(i, i + 5 + 3 * i)) for i, name in enumerate("abc")}
    for name, prompt in prompts.items():
        made.submit(name, prompt, 30)
    made.run()
    assert made.outputs == {name: by_hand(prompt, 30) for name, prompt in prompts.items()}
    assert early.count(3) > 3  # of every sequence one row, before the step


def test_sequences_share_the_rows_and_stay_what_each_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forecasting(monkeypatch, 0.8)
    prompts = {name: tuple(range(i, i + 5 + 3 * i)) for i, name in enumerate("abcde")}
    for name, prompt in prompts.items():
        made.submit(name, prompt, 30)
    made.run()
    assert made.outputs == {name: by_hand(prompt, 30) for name, prompt in prompts.items()}
    assert made.scheduler.counters.accepted_rows > 30


def test_stop_tokens_max_tokens_and_the_edge_of_the_context_cut_what_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = tuple(range(9))
    expected = by_hand(prompt, 40)
    made = forecasting(monkeypatch, 1.0, max_context=40)
    made.submit("stop", prompt, 40, stop_token_ids=(expected[13],))
    for count in (1, 2, 3, 7):
        made.submit(f"{count}", prompt, count)
    made.submit("edge", prompt, 100)
    made.run()
    assert made.outputs["stop"] == expected[: expected.index(expected[13]) + 1]
    assert all(made.outputs[f"{count}"] == expected[:count] for count in (1, 2, 3, 7))
    assert made.outputs["edge"] == expected[: 40 - len(prompt)]


def test_preemption_and_prefixes_that_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few columns: sequences give theirs back and go on; accepted columns are whole blocks for others."""
    made = forecasting(monkeypatch, 0.9)
    prompts = {str(i): tuple((7 * i + j) % VOCAB for j in range(40)) for i in range(5)}
    for name, prompt in prompts.items():
        made.submit(name, prompt, 40)
    made.run()
    assert made.outputs == {name: by_hand(prompt, 40) for name, prompt in prompts.items()}
    assert made.scheduler.counters.preemptions > 0
    again = (*prompts["4"], *made.outputs["4"][:20])
    made.submit("again", again, 10)
    made.run()
    assert made.outputs["again"] == by_hand(again, 10) and made.cached["again"] >= 3 * BLOCK


def test_a_step_without_the_columns_of_the_prefix_has_no_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of one token decodes at once, and nothing of it needs a column of the past."""
    times = {StepShape(32, 208): 9.0, StepShape(64, 0): 1.0}
    made = forecasting(monkeypatch, 1.0, shapes=fixed((32, 208), (64, 0)), costs=times)
    made.submit("a", (3,), 30)
    made.run()
    assert made.runtime.steps[0].shape == StepShape(64, 0)
    assert made.outputs["a"] == by_hand((3,), 30) and made.scheduler.counters.accepted_rows > 10


def test_the_prefix_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forecasting(monkeypatch, 1.0)
    for name in "abc":
        made.submit(name, tuple(range(50)), 12)
    made.run()
    assert all(0 not in segment.blocks for batch in made.runtime.steps for segment in batch.segments)
    assert (made.runtime._pool[:BLOCK] == [[-1, place] for place in range(BLOCK)]).all()
