"""A red disc on white, painted without a library: as a file, and as the film that the browser's camera shows."""

import math
import struct
import zlib

WHITE, RED = (255, 255, 255), (215, 30, 35)
YUV = (235, 128, 128), (84, 105, 213)  # of both, in video range
FILM = (480, 400)


def disc_png(width: int, height: int) -> bytes:
    """A PNG of so many pixels."""
    rows = b"".join(b"\0" + row for row in _rows(width, height, bytes(WHITE), bytes(RED)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def disc_film() -> bytes:
    """Two frames of Y4M, which Chromium repeats."""
    width, height = FILM
    planes = b"".join(
        b"".join(_rows(width >> half, height >> half, bytes([outside]), bytes([inside])))
        for half, outside, inside in zip((0, 1, 1), *YUV, strict=True)
    )
    return f"YUV4MPEG2 W{width} H{height} F30:1 Ip A1:1 C420\n".encode() + 2 * (b"FRAME\n" + planes)


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _rows(width: int, height: int, outside: bytes, inside: bytes) -> list[bytes]:
    radius = 0.15 * height
    rows = []
    for y in range(height):
        half = round(math.sqrt(max(0.0, radius**2 - (y - height / 2) ** 2)))
        margin = outside * (width // 2 - half)
        rows.append(margin + inside * (2 * half) + margin)
    return rows
