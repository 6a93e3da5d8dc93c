"""The worker process itself: what it tells its parent when it cannot start."""

import subprocess
import sys
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from engine.framing import FrameSplitter
from engine.messages import Fatal, decode_report
from tests.engine.tiny_bundle import write_bundle

NEVER_RUNS = """
import sys
from engine.errors import PassFailed
from engine.worker.process import main

def open_runtime(*_):
    raise PassFailed("graph ar1_cl64 failed: QNN graph execute error")

sys.exit(main(sys.argv[1:], open_runtime))
"""


def test_graphs_that_load_and_do_not_run_are_told_in_a_sentence(tmp_path: Path) -> None:
    write_bundle(tmp_path / "tiny")
    config = msgspec.json.encode(EngineConfig(bundle=str(tmp_path / "tiny"))).decode()
    done = subprocess.run([sys.executable, "-c", NEVER_RUNS, config], input=b"", capture_output=True, check=False)
    splitter = FrameSplitter()
    splitter.push(done.stdout)
    body = splitter.pop()
    assert body is not None
    report = decode_report(body)
    assert isinstance(report, Fatal) and not report.permanent
    assert report.message.startswith("graph ar1_cl64 failed: QNN graph execute error; the NPU gave up")
    assert done.returncode == 3 and b"Traceback" not in done.stderr
