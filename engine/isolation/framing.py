"""Frames of every pipe between our processes: a 4-byte little-endian length and that many bytes, whatever they mean."""

import asyncio
import struct
from typing import BinaryIO

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
        """Take more bytes."""
        self._pending += data

    def pop(self) -> bytes | None:
        """Body of the next complete frame, None when there is none. ValueError when a header has an absurd length."""
        pending = self._pending
        if len(pending) < _LENGTH.size:
            return None
        end = _LENGTH.size + _body_bytes(bytes(pending[: _LENGTH.size]))
        if len(pending) < end:
            return None
        body = bytes(pending[_LENGTH.size : end])
        del pending[:end]  # cheap: a bytearray moves its start, not its bytes
        return body


def framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """Block for the body of the next frame; None at end of input, ValueError when the stream is not ours."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    length = _body_bytes(header)
    body = stream.read(length)
    return body if len(body) == length else None


async def next_frame(pipe: asyncio.StreamReader) -> bytes:
    """The body of the next frame; IncompleteReadError at end of input, ValueError when the stream is not ours."""
    header = await pipe.readexactly(_LENGTH.size)
    return await pipe.readexactly(_body_bytes(header))


def _body_bytes(header: bytes) -> int:
    length: int = _LENGTH.unpack(header)[0]
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"frame of {length} bytes exceeds {MAX_FRAME_BYTES}: not a message stream")
    return length
