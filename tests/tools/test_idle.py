"""What processes cost while they have nothing to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.idle import ProcessUse, idle_rows, processes_of


def written(proc: Path, pid: int, parent: int, ticks: tuple[int, int], sleeps: tuple[int, ...]) -> None:
    folder = proc / str(pid)
    stat = [str(number) for number in range(50)]
    stat[1], stat[11:13] = str(parent), map(str, ticks)
    folder.mkdir()
    (folder / "stat").write_text(f"{pid} (a name) of (two) words) {' '.join(stat)}\n")
    (folder / "cmdline").write_text("/usr/bin/python\0-m\0engine.worker\0{}\0" if parent else "/sbin/init\0")
    for thread, count in enumerate(sleeps, pid):
        (folder / "task" / str(thread)).mkdir(parents=True)
        status = f"Name:\tx\nvoluntary_ctxt_switches:\t{count}\nnonvoluntary_ctxt_switches:\t999\n"
        (folder / "task" / str(thread) / "status").write_text(status)


def test_a_process_is_found_with_all_below_it_and_counted_with_all_its_threads(tmp_path: Path) -> None:
    written(tmp_path, 10, 0, (5, 6), (7,))
    written(tmp_path, 20, 10, (1, 2), (3, 4))
    written(tmp_path, 15, 20, (0, 0), (1,))
    written(tmp_path, 30, 1, (9, 9), (9,))
    (tmp_path / "99").mkdir()
    assert processes_of(10, tmp_path) == {
        10: ProcessUse("/sbin/init", 11, 7),
        15: ProcessUse("engine.worker", 0, 1),
        20: ProcessUse("engine.worker", 3, 7),
    }


def test_what_was_used_in_between_is_told_of_each_and_of_all() -> None:
    before = {1: ProcessUse("server", 100, 1000), 2: ProcessUse("worker", 50, 10), 3: ProcessUse("ended", 1, 1)}
    after = {1: ProcessUse("server", 112, 1030), 2: ProcessUse("worker", 50, 25), 4: ProcessUse("new", 9, 9)}
    assert idle_rows(before, after, 60.0, 100) == [
        ("server", "0.20", "0.5"),
        ("worker", "0.00", "0.2"),
        ("together", "0.20", "0.8"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_real_child_is_counted() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = processes_of(os.getpid())
        child.communicate(b"\n")
    assert found[child.pid].sleeps > 0
