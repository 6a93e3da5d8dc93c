"""The few lines of Protocol Buffers' wire format that ONNX files need (protobuf.dev/programming-guides/encoding)."""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class ProtobufError(Exception):
    """The bytes are not a message."""


def number(field: int, value: int) -> bytes:
    """A non-negative integer field."""
    return _varint(field << 3 | VARINT) + _varint(value)


def blob(field: int, value: bytes | str) -> bytes:
    """A string, bytes or message field."""
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | BYTES) + _varint(len(raw)) + raw


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in order; integers for number fields, else bytes. ProtobufError when it is no message."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == VARINT:
            value, position = _read_varint(message, position)
            yield key >> 3, value
            continue
        if kind == BYTES:
            size, position = _read_varint(message, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ProtobufError(f"wire type {kind}")
        if position + size > len(message):
            raise ProtobufError("a field runs past the end")
        yield key >> 3, message[position : position + size]
        position += size


def _varint(value: int) -> bytes:
    assert value >= 0
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ProtobufError("a number runs past the end")
