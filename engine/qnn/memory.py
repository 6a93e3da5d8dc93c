"""Reading C structures by address, with every value checked for plausibility before it is believed."""

import ctypes
import struct

MAX_TEXT = 4096


class LayoutError(Exception):
    """A structure does not look as its version promises."""


def read(layout: str, address: int) -> tuple[int | float, ...]:
    """Little-endian fields (`struct` letters) at an address. A wrong address may crash the process."""
    if address == 0:
        raise LayoutError("a null pointer")
    raw = ctypes.string_at(address, struct.calcsize("<" + layout))
    return struct.unpack("<" + layout, raw)


def unsigned(address: int) -> int:
    """An unsigned 32-bit number."""
    return int(read("I", address)[0])


def pointer(address: int) -> int:
    """A 64-bit pointer, perhaps 0."""
    return int(read("Q", address)[0])


def count(address: int, limit: int, what: str) -> int:
    """An unsigned number that must not exceed `limit`."""
    value = unsigned(address)
    if value > limit:
        raise LayoutError(f"{value} {what}, more than the {limit} that are plausible")
    return value


def text(address: int, what: str) -> str:
    """A printable UTF-8 string; '' for a null pointer."""
    if address == 0:
        return ""
    raw = bytearray()
    for index in range(MAX_TEXT):
        byte = ctypes.string_at(address + index, 1)[0]
        if byte == 0:
            break
        raw.append(byte)
    try:
        value = raw.decode("utf-8")
    except UnicodeDecodeError:
        value = "\0"
    if not value.isprintable():
        raise LayoutError(f"{what} is not text")
    return value


def rows(layout: str, address: int, number: int) -> tuple[tuple[int | float, ...], ...]:
    """`number` consecutive records."""
    size = struct.calcsize("<" + layout)
    return tuple(read(layout, address + index * size) for index in range(number))
