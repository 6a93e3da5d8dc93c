"""Log lines of the server process: one format, on stderr, without control characters; nobody waits for the reader."""

import logging
import re

from engine.logs.handler import DroppingHandler, standard_error

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# A stranger's text must not start a line of its own or move the terminal's cursor; a traceback keeps its lines.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_CONTROL_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]+")


class CleanFormatter(logging.Formatter):
    """A formatter that writes one line per record, and after it its traceback. bare: a logger without time and name."""

    def __init__(self, text: str, bare: str = "") -> None:
        super().__init__(text)
        self._bare = bare

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """The line, each run of control characters in it replaced by a space."""
        return _CONTROL.sub(" ", record.message if record.name == self._bare else super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL_IN_LINES.sub(" ", super().format(record))


def set_up_logging(level: str, bare: str = "") -> None:
    """Configure the root logger; `level` is one of settings.LOG_LEVELS, `bare` a logger whose lines stand alone."""
    handler = DroppingHandler(standard_error())
    handler.setFormatter(CleanFormatter(FORMAT, bare))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    for library in ("asyncio", "httpx", "httpcore", "sse_starlette"):  # they tell of clients' addresses and chunks
        logging.getLogger(library).setLevel(logging.WARNING)


def flush_logs() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()
