"""Headers as a stranger may write them: one sentence, and nothing sized by what they claim."""

import os
import struct
import tracemalloc
from pathlib import Path

import pytest

from engine.compile.sources.gguf.header import read_header
from engine.errors import CompileError

HUGE = 1 << 62


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def header(*parts: bytes, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def strings(content: bytes) -> bytes:
    """A header with an array of two, padded so that two could be there."""
    return header(pair("a", 9, struct.pack("<IQ", 8, 2) + content + bytes(16)), keys=1)


REFUSED = {
    "empty": (b"", "is not a GGUF file"),
    "other": (b"PK\3\4" * 10, "is not a GGUF file"),
    "magic alone": (b"GGUF", "ends early"),
    "version 1": (header(version=1), "version 1"),
    "other byte order": (header(version=3 << 24), "little-endian"),
    "many tensors": (header(tensors=HUGE), "at most 65536"),
    "many keys": (header(keys=HUGE), "at most 65536"),
    "keys that are not there": (header(keys=5), "ends early"),
    "a long key": (header(struct.pack("<Q", HUGE), keys=1), "at most 65536 are read"),
    "a long string": (header(pair("a", 8, struct.pack("<Q", HUGE)), keys=1), "string of"),
    "a string past the end": (header(pair("a", 8, struct.pack("<Q", 1 << 20)), keys=1), "ends early"),
    "a string that is not text": (header(pair("a", 8, text(b"\xff")), keys=1), "not UTF-8"),
    "a long array": (header(pair("a", 9, struct.pack("<IQ", 4, HUGE)), keys=1), "ends early"),
    "a long array of strings": (header(pair("a", 9, struct.pack("<IQ", 8, HUGE)), keys=1), "too many"),
    "a long string in an array": (strings(struct.pack("<Q", HUGE)), "string of"),
    "a string of an array past the end": (strings(text("a") + struct.pack("<Q", 1 << 20)), "ends early"),
    "a string of an array that is not text": (strings(text("a") + text(b"\xff")), "not UTF-8"),
    "an array of arrays": (header(pair("a", 9, struct.pack("<IQ", 9, 1)), keys=1), "type 9"),
    "an unknown type": (header(pair("a", 99, b""), keys=1), "type 99"),
    "a key twice": (header(*[pair("a", 0, b"\1")] * 2, keys=2), "key 'a' twice"),
    "an alignment of zero": (header(pair("general.alignment", 4, bytes(4)), keys=1), "general.alignment"),
    "a tensor of no dimension": (header(tensor("t", ()), tensors=1), "0 dimensions"),
    "a tensor of many dimensions": (header(tensor("t", (1,) * 9), tensors=1), "9 dimensions"),
    "a tensor of no rows": (header(tensor("t", (32, 0)), tensors=1), "does not store"),
    "a row that is no whole block": (header(tensor("t", (33,), kind=2), tensors=1), "does not store"),
    "a tensor of an unknown type": (header(tensor("t", kind=77), tensors=1), "unknown type 77"),
    "a tensor twice": (header(tensor("t"), tensor("t"), bytes(512), tensors=2), "tensor 't' twice"),
    "a tensor past the end": (header(tensor("t"), tensors=1), "does not lie inside the file"),
    "a huge tensor": (header(tensor("t", (32, HUGE, HUGE)), bytes(512), tensors=1), "does not lie inside the file"),
    "a far tensor": (header(tensor("t", offset=HUGE), bytes(512), tensors=1), "does not lie inside the file"),
    "a long tensor name": (header(tensor("t" * 300), bytes(512), tensors=1), "at most 256"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_sentence_before_memory_is_taken(case: str, tmp_path: Path) -> None:
    content, reason = REFUSED[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CompileError) as caught:
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert peak < 1 << 20


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """At each byte of a header with all kinds of values, and of the tensor behind it."""
    whole = header(
        pair("general.alignment", 4, struct.pack("<I", 8)),
        pair("words", 9, struct.pack("<IQ", 8, 2) + text("one") + text("two")),
        pair("numbers", 9, struct.pack("<IQ3d", 12, 3, 1.0, 2.0, 3.0)),
        tensor("t", (8,)),
        tensors=1,
        keys=3,
    )
    content = whole + bytes(-len(whole) % 8) + bytes(32)
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    found = read_header(path)
    assert found.metadata["words"] == ("one", "two")
    assert found.tensors["t"].bytes == 32
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(CompileError):
            read_header(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(CompileError, match="named pipe"):
        read_header(tmp_path / "model.gguf")
