"""Steps of an encoder over a runtime that gives a row its token's number."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from engine.bundle.encoder import pair_types
from engine.bundle.variant import ShapeTable, StepShape
from engine.core.policy import CostTable
from engine.core.text_scheduler import TextScheduler
from engine.errors import StepFailed
from engine.grammar.masks import GrammarMasks
from engine.request import FinishReason, Pooling, Request, SamplingParams
from engine.runtime.interface import Indices, Logits, PackedBatch, Runtime
from engine.worker.step import EngineLoop
from tests.engine.worker.simulation import no_tokenizer

SHAPES = ShapeTable((StepShape(8, 0), StepShape(32, 0)), 32, 0, longest_text=20)


class NumberRuntime(Runtime):
    """Vectors [texts, 2]: the sum of a text's tokens, and of its token types. fails: tokens that kill a step."""

    def __init__(self, middle_ids: tuple[int, ...] = (), fails: tuple[int, ...] = ()) -> None:
        super().__init__(SHAPES, "fake")
        self.middle_ids = middle_ids
        self.fails = fails
        self.batches: list[PackedBatch] = []

    def run(self, batch: PackedBatch) -> Logits:
        self.batches.append(batch)
        if set(self.fails) & set(batch.input_ids.tolist()):
            raise StepFailed("graph failed: no reason")
        texts = [tuple(batch.input_ids[part.start : part.end].tolist()) for part in batch.segments]
        assert all(part.block_rows == part.count for part in batch.segments), "a text sees itself both ways"
        found = [[sum(text), sum(pair_types(text, self.middle_ids)) if self.middle_ids else 0] for text in texts]
        vectors = np.array(found, np.float32)
        vectors[[99 in text for text in texts]] = np.nan
        return Logits.of(vectors)

    def non_finite_rows(self, rows: Indices) -> Indices:
        return rows[:0]

    def keep(self, pool: int, rows: Indices, slots: Indices) -> None:
        raise AssertionError("nothing of a text is kept")

    def close(self) -> None: ...


def text(name: str, *ids: int, priority: int = 0) -> Request:
    return Request(name, ids, SamplingParams(max_tokens=0), priority, pooling=Pooling())


def loop_of(
    runtime: NumberRuntime,
    clock: Callable[[], float] = lambda: 0.0,
    costs: Mapping[StepShape, float] = {StepShape(8, 0): 3.0},
) -> EngineLoop:
    planner = TextScheduler(SHAPES, CostTable(costs), runtime.middle_ids)
    return EngineLoop(planner, runtime, clock, GrammarMasks(no_tokenizer))


def test_each_text_ends_with_its_vector_and_nothing_else() -> None:
    runtime = NumberRuntime()
    loop = loop_of(runtime)
    loop.add(text("a-0#1", 1, 2, 3), (), 0, 0.0)
    loop.add(text("a-1#2", 4), (), 0, 0.0)
    report = loop.step()
    assert [batch.shape.rows for batch in runtime.batches] == [8]
    assert not report.failures
    assert [(event.id, event.token_ids, event.finish) for event in report.events] == [
        ("a-0#1", (), FinishReason.LENGTH),
        ("a-1#2", (), FinishReason.LENGTH),
    ]
    assert [np.frombuffer(event.vector, "<f4")[0] for event in report.events] == [6, 4]
    timings = report.events[0].timings
    assert timings is not None
    assert (timings.prompt_tokens, timings.generated_tokens, timings.steps, timings.step_rows) == (3, 0, 1, 4)
    assert not loop.has_work
    assert loop.step().events == ()
    stats = loop.stats()
    assert (stats.steps, stats.rows_used, stats.rows_run, stats.prompt_tokens, stats.finished) == (1, 4, 8, 4, 2)


def test_the_second_text_of_a_pair_has_another_type() -> None:
    loop = loop_of(NumberRuntime(middle_ids=(7,)))
    loop.add(text("a", 1, 2, 7, 3, 4), (), 0, 0.0)
    assert np.frombuffer(loop.step().events[0].vector, "<f4").tolist() == [17, 2]
    with pytest.raises(ValueError, match="a pair of texts is wanted"):
        loop.add(text("b", 1, 2), (), 0, 0.0)
    assert not loop.has_work
    assert loop.violations() == ()


def test_what_it_cannot_do_is_refused() -> None:
    loop = loop_of(NumberRuntime())
    with pytest.raises(ValueError, match="it generates nothing"):
        loop.add(Request("a", (1,), SamplingParams(max_tokens=1)), (), 0, 0.0)
    with pytest.raises(ValueError, match="the text has 21 tokens, this model reads 20 at most"):
        loop.add(text("a", *range(21)), (), 0, 0.0)
    assert not loop.has_work


def test_a_failed_step_fails_its_texts_alone() -> None:
    loop = loop_of(NumberRuntime(fails=(50,)))
    loop.add(text("bad", 50, *[1] * 19), (), 0, 0.0)
    loop.add(text("beside", 2), (), 0, 0.0)
    loop.add(text("later", *[3] * 20), (), 0, 0.0)
    report = loop.step()
    assert {failed.id for failed in report.failures} == {"bad", "beside"}
    assert all("no reason" in failed.message for failed in report.failures)
    assert [event.id for event in loop.step().events] == ["later"]


def test_a_vector_that_is_not_finite_fails_its_text_alone() -> None:
    loop = loop_of(NumberRuntime())
    loop.add(text("bad", 99), (), 0, 0.0)
    loop.add(text("good", 2), (), 0, 0.0)
    report = loop.step()
    assert [failed.id for failed in report.failures] == ["bad"]
    assert [event.id for event in report.events] == ["good"]


def test_an_aborted_text_takes_no_row() -> None:
    runtime = NumberRuntime()
    loop = loop_of(runtime)
    loop.add(text("a", 1), (), 0, 0.0)
    loop.add(text("b", 2), (), 0, 0.0)
    for name in ("a", "nobody"):
        loop.abort(name)
    assert [event.id for event in loop.step().events] == ["b"]
    assert runtime.batches[0].input_ids.tolist() == [0, 0, 0, 0, 0, 0, 0, 2]
    assert runtime.batches[0].positions.tolist() == [0] * 8


def test_a_bulk_request_leaves_a_small_one_its_turn() -> None:
    """Texts of one HTTP request belong together, whatever their numbers."""
    loop = loop_of(NumberRuntime())
    for number in range(64):
        loop.add(text(f"bulk-1-{number}#{number}", *[1] * 8), (), 0, 0.0)
    loop.step()
    loop.add(text("small-0#70", *[1] * 8), (), 0, 0.0)
    assert "small-0#70" in [event.id for event in loop.step().events]


def test_a_step_is_announced_with_the_time_it_should_take() -> None:
    """What was timed at the start, corrected by the steps that ran; without times the longest step so far."""
    for costs, wanted in (({StepShape(8, 0): 3.0}, [3.0, 4.05]), ({}, [0.0, 1000.0])):
        now = iter(range(100))
        loop = loop_of(NumberRuntime(), lambda: float(next(now)), costs)  # noqa: B023
        told: list[float] = []
        for _ in range(2):
            loop.add(text("a", 1), (), 0, 0.0)
            loop.step(told.append)
        assert told == pytest.approx(wanted)


def test_whoever_watches_is_told_what_a_step_was() -> None:
    now = [5.0]
    loop = loop_of(NumberRuntime(), lambda: now[0])
    loop.add(text("a", 1, 2), (), 0, 0.0)
    assert loop.step().record is None
    loop.watch(True)
    now[0] = 5.5
    loop.add(text("b", 1, 2, 3), (), 0, 0.0)
    loop.add(text("c", 4), (), 0, 0.0)
    record = loop.step().record
    assert record is not None and (record.number, record.began_ms, record.rows) == (2, 5500.0, 8)
    assert [(each.sequence, each.kind, each.rows) for each in record.segments] == [(1, "prefill", 3), (2, "prefill", 1)]
    loop.watch(False)
    loop.add(text("d", 1), (), 0, 0.0)
    assert loop.step().record is None
