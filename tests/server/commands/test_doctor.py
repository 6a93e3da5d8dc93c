"""The report of `hexserve doctor`, of this machine and of probes that crash."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import typer

from engine.doctor.examination import try_providers
from engine.doctor.machine import Check, CheckStatus, MachineFacts, machine_facts
from engine.runtime.qnn.probe import STEPS
from server.commands.doctor import line, write_report
from tests.engine.doctor.scripted_probe import scripted_probe


def test_everything_here_is_well_and_the_report_says_so(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn")
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "server", "doctor", "--report", str(report)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing is wrong." in done.stdout and "result on HTP emulator" in done.stdout
    found = json.loads(report.read_text())
    status = {check["name"]: check["status"] for check in found["checks"]}
    assert {status[step] for step in STEPS} == {"pass"}
    assert found["versions"]["onnxruntime-qnn"] and found["versions"]["python"]
    assert msgspec.convert(found["machine"], MachineFacts) == machine_facts()


def test_what_the_libraries_said_before_an_unknown_crash_is_in_the_report(tmp_path: Path) -> None:
    crash = "import os, sys; print('skid 17 at 0xAB', file=sys.stderr, flush=True); os.abort()"
    checks = list(try_providers(scripted_probe((STEPS[0], True, "fine"), end=crash), STEPS))
    assert "--report" in checks[-1].advice and "skid" not in line(checks[-1])
    write_report(tmp_path / "report.json", checks)
    assert "skid 17 at 0xAB" in json.loads((tmp_path / "report.json").read_text())["checks"][-1]["said"]


def test_lines_and_an_unwritable_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert line(Check("x", CheckStatus.FAIL, "broke", "mend it")).splitlines()[1].strip() == "-> mend it"
    with pytest.raises(typer.Exit):
        write_report(tmp_path / "no" / "report.json", [])
    assert "cannot be written" in capsys.readouterr().err
