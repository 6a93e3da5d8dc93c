"""Frames of a stream, and that a stream nobody reads is given back."""

from collections.abc import Sequence
from typing import Any

import pytest
from starlette.types import Message

from engine.errors import HexserveError, StepFailed
from engine.request import Delta, FinishReason
from server.generation.framing import EVENTS, EventStream, PlainEnding, frame, frames
from server.generation.stream import ChoiceDelta
from server.http.fields import Answer


class Stream:
    """Deltas written down beforehand; counts how often it was aborted."""

    def __init__(self, *batches: Sequence[str] | HexserveError) -> None:
        self.batches = list(batches)
        self.aborted = 0

    async def deltas(self) -> list[ChoiceDelta]:
        batch = self.batches.pop(0)
        if isinstance(batch, HexserveError):
            raise batch
        return arrived(batch)

    def abort(self) -> None:
        self.aborted += 1


class Writer(PlainEnding):
    """A chunk a delta; `end` is the last one."""

    finished = False

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        self.finished = any(delta.text == "end" for _, delta in deltas)
        return [{"text": delta.text} for _, delta in deltas]

    def last_chunks(self) -> list[dict[str, Any]]:
        return [{"usage": 1}]

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        raise AssertionError("it streams")

    def answer(self) -> Answer:
        raise AssertionError("it streams")


def arrived(texts: Sequence[str]) -> list[ChoiceDelta]:
    return [ChoiceDelta(0, Delta(text, (1,), finish=FinishReason.STOP if text == "end" else None)) for text in texts]


def test_an_event_is_named_after_its_type() -> None:
    assert frame({"a": 1}) == b'data: {"a":1}\n\n'
    assert frame({"type": "x.y"}) == b'event: x.y\ndata: {"type":"x.y"}\n\n'


async def test_what_arrives_together_goes_out_in_one_piece() -> None:
    stream = Stream(["b", "c"], ["end"])
    pieces = [piece async for piece in frames(stream, arrived(["a"]), Writer())]  # type: ignore[arg-type]
    assert pieces == [
        b'data: {"text":"a"}\n\n',
        b'data: {"text":"b"}\n\ndata: {"text":"c"}\n\n',
        b'data: {"text":"end"}\n\n',
        b'data: {"usage":1}\n\ndata: [DONE]\n\n',
    ]
    assert stream.aborted == 1


async def test_a_failure_is_the_last_event() -> None:
    stream = Stream(StepFailed("broken"))
    pieces = [piece async for piece in frames(stream, arrived(["a"]), Writer())]  # type: ignore[arg-type]
    assert len(pieces) == 2 and b'"message":"broken"' in pieces[1] and b"[DONE]" not in pieces[1]
    assert stream.aborted == 1


async def test_a_reader_that_leaves_aborts_what_it_read() -> None:
    stream = Stream(["b"])
    reading = frames(stream, arrived(["a"]), Writer())  # type: ignore[arg-type]
    await anext(reading)
    assert stream.aborted == 0
    await reading.aclose()  # type: ignore[attr-defined]
    assert stream.aborted == 1


async def test_a_response_that_never_got_to_its_first_frame_aborts_too() -> None:
    async def receive() -> Message:
        raise OSError("nobody is there")

    async def send(message: Message) -> None:
        raise OSError("nobody is there")

    stream = Stream()
    pieces = frames(stream, [], Writer(), EVENTS)  # type: ignore[arg-type]
    response = EventStream(pieces, 15.0, stream.abort)
    with pytest.raises((OSError, ExceptionGroup)):
        await response({"type": "http", "method": "POST", "path": "/"}, receive, send)
    assert stream.aborted == 1
