"""Log lines of the server process: one format, on stderr, without control characters; nobody waits for the reader."""

import logging
import re

from engine.logs.handler import DroppingHandler, standard_error

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# A stranger's text must not start a line of its own or move the terminal's cursor; a traceback keeps its lines.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_CONTROL_IN_LINES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]+")


class CleanFormatter(logging.Formatter):
    """A formatter that writes one line per record, and after it its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """The line, each run of control characters in it replaced by a space."""
        return _CONTROL.sub(" ", super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        """The line and the traceback, if there is one."""
        return _CONTROL_IN_LINES.sub(" ", super().format(record))


def set_up_logging(level: str) -> None:
    """Configure the root logger; `level` is one of settings.LOG_LEVELS."""
    handler = DroppingHandler(standard_error())
    handler.setFormatter(CleanFormatter(FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("sse_starlette").setLevel(logging.WARNING)  # at debug it writes out every chunk


def flush_logs() -> None:
    """Write what was logged before something else is written to stderr."""
    for handler in logging.getLogger().handlers:
        handler.flush()
