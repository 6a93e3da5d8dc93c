"""Log lines for a reader that may be slow or gone: kept within a bound, then dropped and counted. Nobody waits."""

import io
import logging
import select
import sys
import threading
from collections import deque
from collections.abc import Callable

SERVER, WORKER = "hexserve", "hexserve.worker"
PENDING_BYTES = 1024 * 1024  # a second of the busiest access log
PIECE_BYTES = 64 * 1024  # of one write
FLUSH_S = 1.0  # an unread pipe delays the end by no more
Write = Callable[[bytes], bool]


def labelled(logger: str, model: str) -> str:
    """`hexserve[qwen3]`; the logger alone for the only model of a server, which has no label."""
    return f"{logger}[{model}]" if model else logger


def server_log(model: str) -> logging.Logger:
    return logging.getLogger(labelled(SERVER, model))


def worker_format(model: str) -> str:
    """Of a worker process, which has one model: every logger in it gets the label."""
    return f"%(asctime)s %(levelname)s {labelled('%(name)s', model.replace('%', '%%'))}: %(message)s"


class DroppingHandler(logging.Handler):
    """Writes lines in a thread of its own; what does not fit meanwhile is dropped, and a line says how many were.
    write: takes whole lines, waits until they are written; False when they are lost."""

    def __init__(self, write: Write, pending_bytes: int = PENDING_BYTES) -> None:
        super().__init__()
        self._write, self._pending_bytes = write, pending_bytes
        self._pending: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._is_writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except (TypeError, ValueError, LookupError):  # what % raises for wrong arguments
            self.handleError(record)
            return
        with self._changed:
            if self._size + len(line) > self._pending_bytes:
                self._dropped += 1
                return
            self._add_notice()
            self._add(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not (self._pending or self._is_writing), FLUSH_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending)
                piece = self._take()
                self._is_writing = True
            is_written = self._write(piece)
            with self._changed:
                self._is_writing = False
                if not is_written:
                    self._dropped += piece.count(b"\n")
                elif not self._pending:
                    self._add_notice()
                self._changed.notify_all()

    def _take(self) -> bytes:
        lines = [self._pending.popleft()]
        size = len(lines[0])
        while self._pending and size + len(self._pending[0]) <= PIECE_BYTES:
            lines.append(self._pending.popleft())
            size += len(lines[-1])
        self._size -= size
        return b"".join(lines)

    def _add(self, line: bytes) -> None:
        self._pending.append(line)
        self._size += len(line)

    def _add_notice(self) -> None:
        """Say where lines are missing, once there is room again."""
        if self._dropped:
            text = "%d log lines were dropped: standard error was not read in time"
            self._add(self._line(logging.LogRecord("hexserve", logging.WARNING, "", 0, text, (self._dropped,), None)))
            self._dropped = 0

    def _line(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + "\n").encode("utf-8", "backslashreplace")


def standard_error() -> Write:
    """Writes to standard error past Python's own buffer, whose lock a stalled write would hold at exit."""
    stream = sys.stderr
    try:
        raw = open(stream.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115 (it has nothing to close)
    except (AttributeError, io.UnsupportedOperation):  # closed, or a test's
        return lambda data: stream is not None and not stream.closed and stream.write(data.decode()) > 0
    return lambda data: write_all(raw, data)


def write_all(raw: io.RawIOBase, data: bytes) -> bool:
    """Write everything, however long that takes; False when it cannot be written."""
    rest = memoryview(data)
    while rest:
        try:
            written = raw.write(rest)
        except OSError:  # the reader is gone, the disk is full
            return False
        if written is None:  # another program made the pipe non-blocking
            select.select([], [raw], [])
        else:
            rest = rest[written:]
    return True
