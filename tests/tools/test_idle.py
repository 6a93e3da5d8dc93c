"""What processes cost while they have nothing to do."""

import os
import subprocess
import sys

import pytest

from tools.idle import ProcessUse, idle_rows, processes_of


def test_what_was_used_in_between_is_told_of_each_and_of_all() -> None:
    before = {1: ProcessUse("server", 1.0, 1000), 2: ProcessUse("worker", 0.5, 10), 3: ProcessUse("ended", 1, 1)}
    after = {1: ProcessUse("server", 1.12, 1030), 2: ProcessUse("worker", 0.5, 25), 4: ProcessUse("new", 9, 9)}
    assert idle_rows(before, after, 60.0) == [
        ("server", "0.20", "0.5"),
        ("worker", "0.00", "0.2"),
        ("together", "0.20", "0.8"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_is_counted_with_all_its_threads() -> None:
    work = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True); input()"
    command = [sys.executable, "-c", f"import threading; threading.Thread(target=lambda: exec({work!r})).start()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = processes_of(os.getpid())
        child.communicate(b"\n")
    assert found[child.pid].sleeps > 1 and found[child.pid].seconds >= 0.3
