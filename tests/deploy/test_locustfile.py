"""The locustfile, run by locust itself: locust patches the interpreter, so never in ours."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.commands.scripted_server import Script, serving

pytestmark = pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="needs the extra bench")

LOCUSTFILE = Path(__file__).parents[2] / "deploy" / "locustfile.py"
CHATS = 8


def load(address: str) -> tuple[int, dict[tuple[str, str], tuple[int, int]], str]:
    """Two users and CHATS chats; the exit status, requests and failures by row of the table, and the output."""
    done = subprocess.run(
        [
            sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--users", "2", "--spawn-rate", "2",
            "--run-time", "60s", "--host", address, "--json",
        ],
        capture_output=True, text=True, timeout=100, env={**os.environ, "LOAD_CHATS": str(CHATS)}, check=False,
    )  # fmt: skip
    table, _ = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("[\n    {"))
    rows = {(row["method"], row["name"]): (row["num_requests"], row["num_failures"]) for row in table}
    return done.returncode, rows, done.stdout + done.stderr


def test_refusals_have_their_own_rows_and_are_no_failures() -> None:
    script = Script(["ok", "busy", "limited"], retry_after="0.2")
    with serving(script) as address:
        status, rows, output = load(address)
    assert status == 0, output
    assert len(script.bodies) == CHATS
    assert rows["CHAT", "stream"] == (CHATS - 2, 0)
    assert rows["CHAT", "503"] == rows["CHAT", "429"] == (1, 0)
    assert rows["TTFT", "first token"] == (CHATS - 2, 0)
    assert rows["GAP", "between tokens"] == (3 * (CHATS - 2), 0)
    assert rows["RATE", "tokens/s"] == (CHATS - 2, 0)


def test_broken_streams_are_failures() -> None:
    script = Script(["ok", "midstream", "cut", "broken", "mute"])
    with serving(script) as address:
        status, rows, output = load(address)
    assert status == 1
    assert rows["CHAT", "stream"] == (CHATS, 4), output
    for complaint in ("the engine broke", "no usage", "500"):
        assert complaint in output


def test_a_run_without_answers_is_a_failure() -> None:
    with serving(Script(then="busy", retry_after="0")) as address:
        status, rows, output = load(address)
    assert status == 1
    assert "no chat was answered" in output
    assert rows["CHAT", "503"] == (CHATS, 0)
