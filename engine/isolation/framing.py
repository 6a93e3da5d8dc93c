"""Frames of every pipe between our processes: a 4-byte little-endian length and that many bytes, whatever they mean.
The inside of a helper process: its frames, and the bounds that it sets itself."""

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:  # asyncio takes 4 MB, which helper processes do without
    import asyncio

MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class FrameSplitter:
    """Cuts a byte stream into frame bodies wherever its chunks happen to end; no I/O."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet; more than 0 at end of input means a broken stream."""
        return len(self._pending)

    def push(self, data: bytes) -> None:
        self._pending += data

    def pop(self) -> bytes | None:
        """Body of the next complete frame, None when there is none. ValueError when a header has an absurd length."""
        start = _LENGTH.size
        if len(self._pending) < start:
            return None
        end = start + _body_bytes(bytes(self._pending[:start]))
        if len(self._pending) < end:
            return None
        body = bytes(self._pending[start:end])
        del self._pending[:end]  # cheap: a bytearray moves its start, not its bytes
        return body


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """Block for the body of the next frame; None at end of input, ValueError when the stream is not ours."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    body = stream.read(length := _body_bytes(header))
    return body if len(body) == length else None


async def next_frame(pipe: "asyncio.StreamReader") -> bytes:
    """The body of the next frame; IncompleteReadError at end of input, ValueError when the stream is not ours."""
    return await pipe.readexactly(_body_bytes(await pipe.readexactly(_LENGTH.size)))


def _body_bytes(header: bytes) -> int:
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}: not a message stream")
    return length


class HelperFrames:
    """Frames on the standard streams. Whatever else is printed goes to standard error and breaks no frame."""

    def __init__(self) -> None:
        self._bodies, self._answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def read(self) -> bytes | None:
        """Block for the next frame and tell the parent that it is taken; None when the parent is gone."""
        body = read_frame(self._bodies)
        if body is not None:
            self.write(b"")
        return body

    def write(self, body: bytes) -> None:
        """Answer; ends the process when the parent is gone."""
        try:
            self._answers.write(framed(body))
            self._answers.flush()
        except BrokenPipeError:
            os._exit(0)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a helper made of its opening. answer: to each question, in `longest_s` or its end; None: `reply` says
    why."""

    reply: bytes
    longest_s: float = 0.0
    answer: Callable[[bytes], bytes] | None = None


def serve(most_bytes: int, opened: Callable[[bytes], Opened]) -> int:
    """Say that we are up, answer the opening and then each question until end of input, within so much memory. The
    status to exit with: 3 when we can answer none."""
    bound_memory(most_bytes)
    frames = HelperFrames()
    frames.write(b"")
    opening = frames.read()
    if opening is None:
        return 0
    made = opened(opening)
    frames.write(made.reply)
    if made.answer is None:
        return 3
    while (question := frames.read()) is not None:
        with ending_after(made.longest_s):
            answer = made.answer(question)
        frames.write(answer)
    return 0


def bound_memory(most_bytes: int) -> None:
    """Bound our address space, and never loosen a tighter bound that we were started with. Linux only: macOS does not
    keep this limit, Windows has none. There the time limit has to do."""
    if sys.platform == "linux":
        import resource  # noqa: PLC0415 (Windows has none)

        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        finite = [limit for limit in (most_bytes, soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min(finite), hard))


@contextlib.contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """SIGALRM ends the process when the block takes longer, also inside C code. Without effect on Windows."""
    if sys.platform == "win32":
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
