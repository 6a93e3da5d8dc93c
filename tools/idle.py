"""`python -m tools.idle`: what a server that has nothing to do costs, as a table of its processes. Linux only.

Starts `hexserve serve SOURCE`, asks it once, lets it come to rest and reads what the kernel counts of every thread.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console

from server.commands.own_server import ServerFailed, free_port, running_child, serve_command
from server.commands.tables import table

PROC = Path("/proc")
VOLUNTARY = "voluntary_ctxt_switches:"
PARENT, USER_TICKS, SYSTEM_TICKS = 1, 11, 12  # fields of /proc/PID/stat behind the name
REST_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Of one process so far: its command, ticks of CPU time, and how often its threads went to sleep."""

    command: str
    ticks: int
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
            _ask(server.address)
            time.sleep(REST_S)
            before = processes_of(server.pid)
            time.sleep(options.seconds)
            after = processes_of(server.pid)
    except ServerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = idle_rows(before, after, options.seconds, os.sysconf("SC_CLK_TCK"))
    headings = ("process", "% of a core", "wake-ups a second")
    Console().print(table(headings, rows, f"idle for {options.seconds:g} s", words=1))
    return 0


def _ask(address: str) -> None:
    """One answer, so that all that serving needs has been loaded."""
    model = httpx.get(f"{address}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120).raise_for_status()


def idle_rows(
    before: Mapping[int, ProcessUse], after: Mapping[int, ProcessUse], seconds: float, ticks_per_s: int
) -> list[tuple[str, str, str]]:
    """Processes that were there all the time, then all together."""
    found = [(after[pid].command, used(before[pid], after[pid])) for pid in before if pid in after]
    found.append(("together", tuple(map(sum, zip(*(use for _, use in found), strict=True)))))
    return [(name, f"{100 * use[0] / ticks_per_s / seconds:.2f}", f"{use[1] / seconds:.1f}") for name, use in found]


def used(before: ProcessUse, after: ProcessUse) -> tuple[int, ...]:
    """Ticks and sleeps in between."""
    return after.ticks - before.ticks, after.sleeps - before.sleeps


def processes_of(root: int, proc: Path = PROC) -> dict[int, ProcessUse]:
    """The process and all below it."""
    parents = {}
    for pid in _numbers(proc):
        with contextlib.suppress(OSError):  # one of others, which has just ended
            parents[pid] = int(_fields(proc / str(pid))[PARENT])
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: _use(proc / str(pid)) for pid in sorted(family)}


def _use(process: Path) -> ProcessUse:
    fields = _fields(process)
    words = (process / "cmdline").read_text().replace("\0", " ").split()
    module = words[words.index("-m") + 1] if "-m" in words else words[0]
    statuses = [(process / "task" / str(thread) / "status").read_text() for thread in _numbers(process / "task")]
    sleeps = [line.split()[1] for status in statuses for line in status.splitlines() if line.startswith(VOLUNTARY)]
    return ProcessUse(module, int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS]), sum(map(int, sleeps)))


def _fields(process: Path) -> list[str]:
    """Of its stat, behind the name, which may hold blanks and brackets."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _numbers(folder: Path) -> Iterator[int]:
    yield from (int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())


if __name__ == "__main__":
    sys.exit(main())
