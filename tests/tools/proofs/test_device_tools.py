"""The laptop's programs: what they say when things go wrong."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_smoke_script_tells_a_bundle_that_is_none(tmp_path: Path) -> None:
    report = tmp_path / "smoke.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.proofs.device_smoke", str(tmp_path), "--report", str(report)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "FAIL  load" in done.stdout and "is neither a bundle" in done.stdout
    assert '"pass": false' in report.read_text()


def test_the_report_tells_a_bundle_that_is_none(tmp_path: Path) -> None:
    """What it prints of a real one: tests/genie/test_oracle.py."""
    command = [sys.executable, "-m", "tools.proofs.genie_report", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: {tmp_path} is not a bundle: it has no manifest.json"
