"""A log whose reader stalls, is gone, or comes back."""

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from engine.logs import handler
from engine.logs.handler import DroppingHandler, standard_error, write_all

LINE = 100  # bytes of a record's line
BOUND = 50 * LINE
NOTICE = re.compile(rb"(\d+) log lines were dropped: standard error was not read in time\n")


class Reader:
    """What the handler writes to: lets pieces through when told to."""

    def __init__(self) -> None:
        self.text = b""
        self.is_good = True
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, data: bytes) -> bool:
        self.entered.release()
        self.open.wait()
        if self.is_good:
            self.text += data
        return self.is_good


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader()
    yield made
    made.open.set()


@pytest.fixture
def log(reader: Reader) -> Callable[[int], None]:
    """Logs the line of a number."""
    handler = DroppingHandler(reader, BOUND)

    def log(number: int) -> None:
        handler.handle(logging.makeLogRecord({"msg": f"{number:0{LINE - 1}d}"}))

    log.handler = handler  # type: ignore[attr-defined]
    return log


def flush(log: Callable[[int], None]) -> None:
    log.handler.flush()  # type: ignore[attr-defined]


def numbers(text: bytes) -> list[int]:
    return [int(line) for line in text.splitlines() if line.isdigit()]


def test_a_stalled_reader_stops_nobody_and_is_told_what_it_missed(reader: Reader, log: Callable[[int], None]) -> None:
    log(0)
    reader.entered.acquire()  # the first line is being written, and stalls
    for number in range(1, 1000):
        log(number)
    reader.open.set()
    flush(log)
    log(1000)
    flush(log)
    kept = numbers(reader.text)
    (notice,) = NOTICE.finditer(reader.text)
    assert kept == [*range(51), 1000]
    assert int(notice[1]) == 1001 - len(kept)
    assert reader.text.index(b"%099d" % 50) < notice.start() < reader.text.index(b"%099d" % 1000)


def test_what_was_missed_is_said_though_nothing_follows(reader: Reader, log: Callable[[int], None]) -> None:
    log(0)
    reader.entered.acquire()
    for number in range(1, 100):
        log(number)
    reader.open.set()
    for _ in range(2):  # the lines, then the notice
        reader.entered.acquire()
    flush(log)
    assert NOTICE.search(reader.text)


def test_lost_lines_count_as_dropped(reader: Reader, log: Callable[[int], None]) -> None:
    reader.open.set()
    reader.is_good = False
    log(0)
    flush(log)
    reader.is_good = True
    log(1)
    flush(log)
    found = NOTICE.match(reader.text)
    assert found and (found[1], numbers(reader.text)) == (b"1", [1])


def test_a_flush_does_not_wait_for_ever(
    reader: Reader, log: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "FLUSH_S", 0.01)
    log(0)
    flush(log)
    assert reader.text == b""


def test_wrong_arguments_of_a_line_break_nothing(
    reader: Reader, log: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    reader.open.set()
    log.handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("x",)}))  # type: ignore[attr-defined]
    log(1)
    flush(log)
    assert numbers(reader.text) == [1]


def test_a_pipe_that_another_program_made_non_blocking() -> None:
    out, into = os.pipe()
    os.set_blocking(into, False)
    data = b"x" * 300_000
    with os.fdopen(into, "wb", buffering=0) as raw, os.fdopen(out, "rb") as pipe:
        writer = threading.Thread(target=lambda: (write_all(raw, data), raw.close()))
        writer.start()
        assert pipe.read() == data
        writer.join()


def test_a_pipe_without_a_reader_is_a_loss() -> None:
    out, into = os.pipe()
    os.close(out)
    with os.fdopen(into, "wb", buffering=0) as raw:
        assert isinstance(raw, io.RawIOBase) and not write_all(raw, b"x")


def test_lines_for_a_stream_that_was_closed_are_lost_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where a program replaces standard error for a while."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    write = standard_error()
    assert write(b"one\n") and stream.getvalue() == "one\n"
    stream.close()
    assert not write(b"two\n")
