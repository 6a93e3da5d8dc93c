"""One stream without an engine: what its clock says, and how far its reader may lag behind."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.client.token_stream import TokenStream
from engine.errors import EngineFailure
from engine.request import Delivered, FinishReason, GuessCounts, Request, RequestTimings, SamplingParams, TokenEvent
from engine.text.assembler import StopRules
from engine.text.tokenizer import Tokenizer
from tests.engine.tiny_bundle import write_bundle


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    write_bundle(tmp_path)
    return Tokenizer((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))


def stream_of(tokenizer: Tokenizer, buffer_deltas: int = 100) -> tuple[TokenStream, list[RequestTimings | None]]:
    ends: list[RequestTimings | None] = []
    request = Request("a", (1, 2, 3), SamplingParams(max_tokens=50))
    return TokenStream(request, tokenizer, StopRules(), buffer_deltas, lambda _, timings: ends.append(timings)), ends


def token(character: str, finish: FinishReason | None = None, cached: int = 0) -> TokenEvent:
    return TokenEvent("a", (ord(character),), (), finish, cached_tokens=cached)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the stream's clock says, in seconds: the only entry."""
    seconds = [100.0]
    monkeypatch.setattr("engine.client.token_stream.time.perf_counter", lambda: seconds[0])
    return seconds


def feed(stream: TokenStream, now: list[float], *events: tuple[float, TokenEvent]) -> None:
    """Each so many seconds after the one before."""
    for seconds, event in events:
        now[0] += seconds
        stream.feed(event)


async def test_without_the_workers_timings_our_own_clock_tells_them(tokenizer: Tokenizer, now: list[float]) -> None:
    stream, ends = stream_of(tokenizer)
    feed(stream, now, (2.0, token("a", cached=2)), (3.0, token("b")), (5.0, token("c", FinishReason.LENGTH)))
    deltas = [delta async for delta in stream]
    timings = deltas[-1].timings
    assert timings is not None and ends == [timings]
    assert (timings.queue_ms, timings.prompt_ms, timings.generate_ms) == (0.0, 2000.0, 8000.0)
    assert (timings.prompt_tokens, timings.cached_tokens, timings.generated_tokens) == (3, 2, 3)
    assert [delta.timings for delta in deltas[:-1]] == [None, None]


async def test_the_wait_and_the_devices_come_with_first_tokens(tokenizer: Tokenizer, now: list[float]) -> None:
    """A stream that moved: two workers told it; the wait is that of the first, and no time of the prompt."""
    stream, _ = stream_of(tokenizer)
    first, second = replace(token("a"), device="NPU", queue_ms=500.0), replace(token("b"), device="CPU", queue_ms=9.0)
    feed(stream, now, (2.0, first), (2.0, token("c")), (2.0, second), (2.0, token("d", FinishReason.LENGTH)))
    timings = [delta async for delta in stream][-1].timings
    assert timings is not None and timings.devices == ("NPU", "CPU")
    assert (timings.queue_ms, timings.prompt_ms, timings.first_token_ms) == (500.0, 1500.0, 2000.0)


async def test_a_reader_may_be_as_far_behind_as_the_bound_and_no_further(tokenizer: Tokenizer) -> None:
    stream, ends = stream_of(tokenizer, buffer_deltas=4)
    for character in "abcd":
        stream.feed(token(character))
    assert ends == []
    assert (await anext(stream)).text == "a"
    for character in "ef":
        stream.feed(token(character))
    assert ends == [None]
    with pytest.raises(EngineFailure, match="4 pieces behind"):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize("has_timings", [True, False])
async def test_guesses_of_all_steps_are_counted_also_where_a_worker_could_not(
    tokenizer: Tokenizer, has_timings: bool
) -> None:
    """After a stop string or the death of a worker no timings come with the last token."""
    stream, ends = stream_of(tokenizer)
    worker = RequestTimings(1.0, 1.0, 1.0, 3, 0, 2, drafted_tokens=3, accepted_tokens=1)
    stream.feed(replace(token("a"), guesses=GuessCounts(4, 3, 4, 3)))
    stream.feed(token("b"))
    last = replace(token("c", FinishReason.LENGTH), guesses=GuessCounts(3, 1))
    stream.feed(replace(last, timings=worker if has_timings else None))
    (timings,) = ends
    assert timings is not None
    assert (timings.predicted_tokens, timings.accepted_predicted_tokens) == (4, 3)
    assert (timings.drafted_tokens, timings.accepted_tokens) == ((3, 1) if has_timings else (7, 4))


async def test_an_answer_goes_on_behind_what_another_server_delivered(tokenizer: Tokenizer) -> None:
    stream, ends = stream_of(tokenizer)
    assert stream.resume(Delivered((ord("a"), ord("b"))))
    stream.feed(token("c", FinishReason.LENGTH))
    deltas = [delta async for delta in stream]
    assert [(delta.text, delta.is_known) for delta in deltas] == [("ab", True), ("c", False)]
    assert deltas[1].timings is not None and deltas[1].timings.generated_tokens == 3 and len(ends) == 1


@pytest.mark.parametrize(
    "delivered",
    [
        Delivered((ord("a"), ord("b")), FinishReason.LENGTH),
        Delivered((ord("a"), ord("b")), FinishReason.STOP, "b"),
        Delivered((ord("a"), ord("b")), FinishReason.STOP, ord("b")),
    ],
)
async def test_an_answer_that_had_ended_is_not_computed_again(tokenizer: Tokenizer, delivered: Delivered) -> None:
    ends: list[RequestTimings | None] = []
    request = Request("a", (1, 2, 3), SamplingParams(max_tokens=50))
    rules = StopRules(("b",) if delivered.stopped_by == "b" else ())
    stream = TokenStream(request, tokenizer, rules, 100, lambda _, timings: ends.append(timings))
    assert not stream.resume(delivered) and len(ends) == 1
    (delta,) = [delta async for delta in stream]
    assert delta.is_known and (delta.finish, delta.stopped_by) == (delivered.finish, delivered.stopped_by)
