"""The frames of a grammar compiler's pipes: a 4-byte little-endian length and that many bytes."""

import asyncio
import struct

LENGTH = struct.Struct("<I")
LARGEST_BYTES = 64 * 1024 * 1024


async def write_frame(pipe: asyncio.StreamWriter, body: bytes) -> None:
    """Write one frame."""
    pipe.write(LENGTH.pack(len(body)) + body)
    await pipe.drain()


async def read_frame(pipe: asyncio.StreamReader) -> bytes:
    """The next frame; IncompleteReadError at the end, OSError when the stream is not ours."""
    (length,) = LENGTH.unpack(await pipe.readexactly(LENGTH.size))
    if length > LARGEST_BYTES:
        raise OSError(f"a frame of {length} bytes is too large")
    return await pipe.readexactly(length)
