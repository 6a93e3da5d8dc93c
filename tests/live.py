"""A real `hexserve serve` in a process of its own, for tests that are clients."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

READY = re.compile(r"serving .+ on (http://\S+)")
START_S = 180


@dataclass
class LiveServer:
    """Handle of a running server. `lines` is what it logged so far."""

    process: subprocess.Popen[str]
    url: str
    lines: list[str] = field(default_factory=list)

    def metric(self, name: str) -> float:
        """Sum of a metric's samples."""
        text = httpx.get(f"{self.url}/metrics").text
        samples = [line for line in text.splitlines() if line.startswith((name + "{", name + " "))]
        assert samples, f"no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples)

    def worker_pid(self) -> int:
        """Process id of the worker: the only child that runs engine.worker."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_worker(entry):
                return int(entry.name)
        raise AssertionError("no worker process")

    def _is_worker(self, entry: Path) -> bool:
        try:
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            command = (entry / "cmdline").read_bytes()
        except OSError:
            return False
        return int(parent) == self.process.pid and b"engine.worker" in command


@contextmanager
def serving(*arguments: str, cache: Path | None = None) -> Iterator[LiveServer]:
    """Start `hexserve serve`, wait until it says where it listens, stop it at the end."""
    command = [sys.executable, "-m", "server", "serve", "--port", "0", *arguments]
    environment = {**os.environ, **({"HEXSERVE_CACHE_DIR": str(cache)} if cache else {})}
    with watching(command, environment) as server:
        yield server


@contextmanager
def watching(command: list[str], environment: dict[str, str], cwd: Path | None = None) -> Iterator[LiveServer]:
    """Run any command that ends in a server; its whole process group is stopped at the end."""
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd, start_new_session=True
    )
    server = LiveServer(process, "")
    assert process.stderr is not None
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    for line in process.stderr:
        server.lines.append(line.rstrip())
        found = READY.search(line)
        if found:
            server.url = found[1]
            break
    watchdog.cancel()
    drain = threading.Thread(target=_drain, args=(process, server.lines), daemon=True)
    drain.start()
    try:
        assert server.url, "\n".join(server.lines)
        yield server
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        process.wait(30)
        drain.join(10)
        process.stderr.close()


def _drain(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stderr is not None
    lines.extend(line.rstrip() for line in process.stderr)
