"""What reaches the log of what a stranger sends."""

import logging
import subprocess
import sys

import pytest

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


TELLING = """
import logging
from server.logs import flush_logs, set_up_logging
set_up_logging("debug")
logging.getLogger("hexserve").debug("own")
{told}
flush_logs()
"""


@pytest.mark.parametrize(
    "told",
    [
        "logging.getLogger('httpx').info('GET https://images.example/?signature=abc')",
        "logging.getLogger('httpcore.http11').debug('send_request_headers /?signature=abc')",
    ],
)
def test_addresses_of_images_that_clients_name_are_left_out(told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TELLING.format(told=told)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "own" in done.stderr and "signature" not in done.stderr
