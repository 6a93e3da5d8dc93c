"""The share of a core that a process and its children take."""

import os
import subprocess
import sys

from typer.testing import CliRunner

from tools.proofs.idle import app, processor_seconds

BUSY = "import time\nwhile time.process_time() < 0.4: pass\nprint('done', flush=True)\ninput()"


def test_children_count() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline() == b"done\n"
        assert 0.3 <= processor_seconds(child.pid) < processor_seconds(os.getpid())
        child.kill()


def test_a_process_that_is_not_there() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    result = CliRunner().invoke(app, [str(child.pid)])
    assert result.exit_code == 2 and f"there is no process {child.pid}" in result.output
