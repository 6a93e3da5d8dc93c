"""`python -m tools.idle`: what a server that has nothing to do costs, as a table of its processes. Linux only.

Starts `hexserve serve SOURCE`, asks it once, lets it come to rest and reads what the kernel counts of every thread.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from rich.console import Console

from server.commands.own_server import ServerFailed, free_port, running_child, serve_command
from server.commands.tables import table

VOLUNTARY = "voluntary_ctxt_switches:"
REST_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Of one process so far: its command, seconds of CPU time, and how often its threads went to sleep."""

    command: str
    seconds: float
    sleeps: int


def main() -> int:
    """Measure and print; 1 where the server does not start."""
    parser = argparse.ArgumentParser(prog="python -m tools.idle", description=__doc__)
    parser.add_argument("source", nargs="?", default="demo", help="what to serve")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to look at it")
    options = parser.parse_args()
    port = free_port()
    try:
        with running_child(serve_command(options.source, port), port) as server:
            ask(server.address)
            time.sleep(REST_S)
            before = processes_of(server.pid)
            time.sleep(options.seconds)
            after = processes_of(server.pid)
    except ServerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = idle_rows(before, after, options.seconds)
    headings = ("process", "% of a core", "wake-ups a second")
    Console().print(table(headings, rows, f"idle for {options.seconds:g} s", words=1))
    return 0


def ask(address: str) -> None:
    """One answer, for which all that serving needs is loaded."""
    model = httpx.get(f"{address}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120).raise_for_status()


def idle_rows(
    before: Mapping[int, ProcessUse], after: Mapping[int, ProcessUse], seconds: float
) -> list[tuple[str, str, str]]:
    """Processes that were there all the time, then all together."""
    pairs = [(before[pid], after[pid]) for pid in before if pid in after]
    found = [(new.command, new.seconds - old.seconds, new.sleeps - old.sleeps) for old, new in pairs]
    found.append(("together", sum(each[1] for each in found), sum(each[2] for each in found)))
    return [(name, f"{100 * used / seconds:.2f}", f"{sleeps / seconds:.1f}") for name, used, sleeps in found]


def processes_of(root: int) -> dict[int, ProcessUse]:
    """The process and all below it. psutil.NoSuchProcess."""
    server = psutil.Process(root)
    return {each.pid: _use(each) for each in (server, *server.children(recursive=True))}


def _use(process: psutil.Process) -> ProcessUse:
    words, times = process.cmdline(), process.cpu_times()
    module = words[words.index("-m") + 1] if "-m" in words else words[0]
    statuses = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/status")]
    sleeps = [line.split()[1] for status in statuses for line in status.splitlines() if line.startswith(VOLUNTARY)]
    return ProcessUse(module, times.user + times.system, sum(map(int, sleeps)))


if __name__ == "__main__":
    sys.exit(main())
