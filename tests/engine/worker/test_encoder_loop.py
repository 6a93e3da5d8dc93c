"""The loop of an encoder over a runtime that gives a row its token's number."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.encoders.batch import EncoderBatch
from engine.errors import PassFailed
from engine.request import FinishReason, Pooling, Request, SamplingParams
from engine.worker.encoder_loop import EncoderLoop, Float32, caller_of

ROWS = (8, 32)


@dataclass
class NumberRuntime:
    """Hidden states [N, 2]: a row's token, and its token type. fails: tokens that kill a pass. Keeps what it ran."""

    rows: tuple[int, ...] = ROWS
    fails: tuple[int, ...] = ()
    batches: list[EncoderBatch] = field(default_factory=list)

    def run(self, batch: EncoderBatch) -> Float32:
        self.batches.append(batch)
        if set(self.fails) & set(batch.ids.tolist()):
            raise PassFailed("graph failed: no reason")
        hidden = np.stack([batch.ids, batch.types], axis=1).astype(np.float32)
        hidden[batch.ids == 99] = np.nan
        return hidden


def first_row(hidden: Float32) -> Float32:
    return hidden[0]


def sums(hidden: Float32) -> Float32:
    return np.asarray(hidden.sum(axis=0), np.float32)


def text(name: str, *ids: int, priority: int = 0) -> Request:
    return Request(name, ids, SamplingParams(max_tokens=0), priority, pooling=Pooling())


def loop_of(runtime: NumberRuntime, middle_ids: tuple[int, ...] = ()) -> EncoderLoop:
    return EncoderLoop(runtime, sums, 20, lambda: 0.0, {8: 3.0}, middle_ids)


def test_each_text_ends_with_its_vector_and_nothing_else() -> None:
    runtime = NumberRuntime()
    loop = loop_of(runtime)
    loop.add(text("a-0#1", 1, 2, 3), (), 0, 0.0)
    loop.add(text("a-1#2", 4), (), 0, 0.0)
    report = loop.step()
    assert [len(batch.ids) for batch in runtime.batches] == [8]
    assert not report.failures
    assert [(event.id, event.token_ids, event.finish) for event in report.events] == [
        ("a-0#1", (), FinishReason.LENGTH),
        ("a-1#2", (), FinishReason.LENGTH),
    ]
    assert [np.frombuffer(event.vector, "<f4")[0] for event in report.events] == [6, 4]
    timings = report.events[0].timings
    assert timings is not None
    assert (timings.prompt_tokens, timings.generated_tokens, timings.passes, timings.pass_rows) == (3, 0, 1, 4)
    assert not loop.has_work
    assert loop.step().events == ()
    stats = loop.stats()
    assert (stats.passes, stats.rows_used, stats.rows_run, stats.prompt_tokens, stats.finished) == (1, 4, 8, 4, 2)


def test_the_second_text_of_a_pair_has_another_type() -> None:
    loop = loop_of(NumberRuntime(), middle_ids=(7,))
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


def test_a_failed_pass_fails_its_texts_alone() -> None:
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
    assert runtime.batches[0].ids.tolist() == [2, 0, 0, 0, 0, 0, 0, 0]


def test_a_bulk_request_leaves_a_small_one_its_turn() -> None:
    """Texts of one HTTP request belong together, whatever their numbers."""
    loop = loop_of(NumberRuntime())
    for number in range(64):
        loop.add(text(f"bulk-1-{number}#{number}", *[1] * 8), (), 0, 0.0)
    loop.step()
    loop.add(text("small-0#70", *[1] * 8), (), 0, 0.0)
    assert "small-0#70" in [event.id for event in loop.step().events]
    assert caller_of("bulk-1-63#63") == "bulk-1"
    assert caller_of("plain") == "plain"


def test_a_pass_is_announced_with_the_time_it_should_take() -> None:
    """What was timed at the start, then the longest that a pass of as many rows took."""
    now = iter(range(100))
    loop = EncoderLoop(NumberRuntime(), first_row, 20, lambda: float(next(now)), {8: 3.0})
    told: list[float] = []
    for _ in range(2):
        loop.add(text("a", 1), (), 0, 0.0)
        loop.step(told.append)
    assert told == [3.0, 1000.0]


def test_whoever_watches_is_told_what_a_pass_was() -> None:
    now = [5.0]
    loop = EncoderLoop(NumberRuntime(), sums, 20, lambda: now[0], {})
    loop.add(text("a", 1, 2), (), 0, 0.0)
    assert loop.step().record is None
    loop.watch(True)
    now[0] = 5.5
    loop.add(text("b", 1, 2, 3), (), 0, 0.0)
    loop.add(text("c", 4), (), 0, 0.0)
    record = loop.step().record
    assert record is not None and (record.number, record.began_ms, record.rows) == (2, 500.0, 8)
    assert [(each.sequence, each.kind, each.rows) for each in record.segments] == [(1, "prefill", 3), (2, "prefill", 1)]
    loop.watch(False)
    loop.add(text("d", 1), (), 0, 0.0)
    assert loop.step().record is None
