"""What reaches the log of what a stranger sends."""

import logging
import sys

from server.logs import FORMAT, CleanFormatter

NASTY = "a\r\n2026-01-01 INFO forged\x1b[31m\x00\x9b2J\u2028b"


def test_one_line_per_record() -> None:
    record = logging.makeLogRecord({"name": "hexserve", "msg": "from %s", "args": (NASTY,), "levelname": "INFO"})
    line = CleanFormatter(FORMAT).format(record)
    assert line.endswith("hexserve: from a 2026-01-01 INFO forged [31m 2J b")
    assert line.isprintable()


def test_a_traceback_keeps_its_lines() -> None:
    try:
        raise ValueError(NASTY)
    except ValueError:
        record = logging.makeLogRecord({"name": "hexserve", "msg": "it broke", "exc_info": sys.exc_info()})
    text = CleanFormatter(FORMAT).format(record)
    assert "Traceback" in text
    assert all(line.replace("\t", " ").isprintable() for line in text.split("\n"))
