"""Framing: any messages, cut anywhere, come out whole and in order."""

import asyncio
import io
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.isolation.framing import MAX_FRAME_BYTES, FrameSplitter, framed, next_frame, read_frame
from engine.messages import (
    Abort,
    Command,
    Failed,
    Fatal,
    Ready,
    Report,
    Shutdown,
    Stats,
    Submit,
    Tokens,
    decode_report,
    frame,
    read_command,
)
from engine.request import FinishReason, Request, RequestTimings, SamplingParams, TokenEvent, TokenLogprob

TOKEN = st.integers(0, 2**31)
EVENTS = st.builds(
    TokenEvent,
    st.text(),
    st.lists(TOKEN).map(tuple),
    st.lists(st.builds(TokenLogprob, TOKEN, st.floats(-99, 0), st.just(((1, -2.5),)))).map(tuple),
    st.none() | st.sampled_from(FinishReason),
    st.none() | TOKEN,
    st.none() | st.just(RequestTimings(1.0, 2.0, 3.0, 4, 5, 6)),
)
REPORTS = st.one_of(
    st.builds(Tokens, st.lists(EVENTS, max_size=3).map(tuple), st.just(Stats(steps=3))),
    st.builds(Failed, st.text(), st.text()),
    st.builds(Fatal, st.text(), st.booleans()),
    st.just(Ready("b", "CPU", 1, ("ar1_cl2",))),
)
COMMANDS = st.one_of(
    st.builds(Abort, st.text()),
    st.just(Shutdown()),
    st.builds(
        Submit,
        st.builds(Request, st.text(), st.lists(TOKEN).map(tuple), st.just(SamplingParams(3, logit_bias=((1, 2.0),)))),
        st.lists(TOKEN).map(tuple),
    ),
)


def feed(splitter: FrameSplitter, data: bytes) -> list[bytes]:
    """Push bytes and take every complete body."""
    splitter.push(data)
    return list(iter(splitter.pop, None))


@given(st.lists(REPORTS, max_size=5), st.lists(st.integers(1, 40)))
def test_reports_come_out_whole_wherever_the_stream_is_cut(sent: list[Report], sizes: list[int]) -> None:
    data, splitter, received = b"".join(map(frame, sent)), FrameSplitter(), []
    for size in sizes:
        received += feed(splitter, data[:size])
        data = data[size:]
    received += feed(splitter, data)
    assert [decode_report(body) for body in received] == sent
    assert splitter.pending_bytes == 0


@given(st.lists(COMMANDS, max_size=5), st.integers(0, 30))
def test_commands_come_out_until_the_input_ends(sent: list[Command], missing: int) -> None:
    data = b"".join(map(frame, sent))
    stream = io.BytesIO(data[: len(data) - missing])
    received = []
    while (command := read_command(stream)) is not None:
        received.append(command)
    assert received == sent[: len(received)]
    assert missing or received == sent


@given(st.binary(max_size=200), st.integers(1, 50))
def test_garbage_is_a_clear_error_or_an_unfinished_frame(data: bytes, size: int) -> None:
    splitter, bodies = FrameSplitter(), []
    try:
        for start in range(0, len(data), size):
            bodies += feed(splitter, data[start : start + size])
        for body in bodies:
            decode_report(body)
    except (ValueError, msgspec.MsgspecError):
        return
    assert splitter.pending_bytes + sum(len(body) + 4 for body in bodies) == len(data)


def test_an_absurd_length_is_refused_at_the_header() -> None:
    with pytest.raises(ValueError, match="not a message stream"):
        feed(FrameSplitter(), struct.pack("<I", MAX_FRAME_BYTES + 1))


async def test_every_reader_takes_the_same_frames_and_refuses_the_same_lengths() -> None:
    pipe, blocking = asyncio.StreamReader(), io.BytesIO(framed(b"abc") + framed(b""))
    pipe.feed_data(framed(b"abc") + framed(b"") + framed(b"abc")[:-1])
    pipe.feed_eof()
    assert [await next_frame(pipe), await next_frame(pipe)] == [b"abc", b""]
    assert [read_frame(blocking), read_frame(blocking), read_frame(blocking)] == [b"abc", b"", None]
    with pytest.raises(asyncio.IncompleteReadError):
        await next_frame(pipe)
    absurd = struct.pack("<I", MAX_FRAME_BYTES + 1)
    with pytest.raises(ValueError, match="not a message stream"):
        read_frame(io.BytesIO(absurd))
    foreign = asyncio.StreamReader()
    foreign.feed_data(absurd)
    with pytest.raises(ValueError, match="not a message stream"):
        await next_frame(foreign)
