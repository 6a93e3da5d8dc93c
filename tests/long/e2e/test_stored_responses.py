"""Stored responses of a real server that is killed while it generates, and of the one that comes after it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.live import LiveServer, watching

ROOT = Path(__file__).parents[3]
MODEL = "scripted"
LONG = "say: " + "word " * 3000
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals to a process group are POSIX here")


@contextmanager
def scripted(folder: Path) -> Iterator[LiveServer]:
    command = [sys.executable, "-m", "tests.clients.scripted", "hermes", str(folder / "bundle")]
    command += ["--port", "0", "--model-name", MODEL]
    command += ["--store-responses", "true", "--data-dir", str(folder / "data")]
    with watching(command, dict(os.environ), ROOT) as server:
        yield server


def respond(server: LiveServer, **fields: object) -> dict[str, object]:
    answer = httpx.post(f"{server.url}/v1/responses", json={"model": MODEL} | fields, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def state(server: LiveServer, id: object) -> dict[str, object]:
    return dict(httpx.get(f"{server.url}/v1/responses/{id}", timeout=60).json())


def test_what_a_killed_server_was_generating_has_failed_and_the_rest_is_there(tmp_path: Path) -> None:
    with scripted(tmp_path) as first:
        done = respond(first, input="Hello")
        running = respond(first, input=LONG, background=True)
        while state(first, running["id"])["status"] == "queued":
            pass
        children = psutil.Process(first.process.pid).children(recursive=True)
        first.process.kill()
        psutil.wait_procs(children, timeout=30)
    with scripted(tmp_path) as second:
        failed = state(second, running["id"])
        assert failed["status"] == "failed"
        assert failed["error"] == {
            "code": "server_error",
            "message": "The server ended while it generated this response.",
        }
        assert any("because their server ended while it generated them: 1 responses" in line for line in second.lines)
        last = httpx.get(f"{second.url}/v1/responses/{running['id']}", params={"stream": "true", "starting_after": "7"})
        assert last.text.startswith("event: response.failed\n") and '"sequence_number":8' in last.text
        assert last.text.count("event: ") == 1
        assert state(second, done["id"]) == done
        assert respond(second, input="again", previous_response_id=done["id"])["status"] == "completed"


def test_a_server_that_ends_in_order_stores_what_it_breaks_off(tmp_path: Path) -> None:
    with scripted(tmp_path) as first:
        running = respond(first, input=LONG, background=True)
    with scripted(tmp_path) as second:
        failed = state(second, running["id"])
        assert (failed["status"], dict(failed["error"])["code"]) == ("failed", "server_error")  # type: ignore[call-overload]
        assert "shutting down" in str(failed["error"])
