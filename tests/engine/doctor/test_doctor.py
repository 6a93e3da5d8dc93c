"""`hexserve doctor` here, on machines that are not here, and with probes that go wrong."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from engine.doctor.examination import Check, CheckStatus, examine, try_providers
from engine.doctor.machine import HtpTarget, chip_of, judge_accelerators, judge_nodes
from engine.doctor.small_graph import example, expected, small_graph
from engine.graphs.onnx_qnn_probe import STEPS
from server.commands.doctor.report import line, write_report


def test_the_small_graph_is_onnx_and_does_what_it_says() -> None:
    model = onnx.load_from_string(small_graph())
    onnx.checker.check_model(model, full_check=True)
    (y,) = ReferenceEvaluator(model).run(None, {"x": example()})
    np.testing.assert_allclose(np.asarray(y, np.float32), expected(), atol=2e-3)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", HtpTarget(60, 73)),
        ("Snapdragon(R) X 12-core X1P64100 @ 3.40 GHz", HtpTarget(60, 73)),
        ("Snapdragon(R) X2 Elite Extreme - X2E-96-100", HtpTarget(88, 81)),
        ("SM8750 HDK", HtpTarget(69, 79)),
        ("AMD EPYC", None),
        ("", None),
    ],
)
def test_chips_by_name(name: str, chip: HtpTarget | None) -> None:
    assert chip_of(name) == chip


def test_drivers_on_linux_and_windows() -> None:
    assert judge_nodes(["/dev/fastrpc-cdsp"], lambda _: True) == (True, "/dev/fastrpc-cdsp")
    assert "cannot be opened by this user" in judge_nodes(["/dev/fastrpc-cdsp"], lambda _: False)[1]
    assert (
        "no fastrpc node of the compute DSP (found: /dev/fastrpc-adsp)" in judge_nodes(["/dev/fastrpc-adsp"], bool)[1]
    )
    hexagon = ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Hexagon(TM) NPU", "30.0.140.1000")
    assert judge_accelerators([hexagon]) == (True, " ".join(hexagon))
    assert judge_accelerators([])[0] is False


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


def test_without_the_extra_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.doctor.examination.package_version", lambda: "")
    checks = {check.name: check for check in examine(None)}
    assert "pip install 'hexserve[qnn]'" in checks["QNN libraries"].text
    assert checks["CPU provider"].status is CheckStatus.PASS and checks["result on CPU"].status is CheckStatus.PASS
    assert "compile" not in checks and not [check for check in checks.values() if check.status is CheckStatus.FAIL]


def test_a_folder_without_libraries_is_a_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.doctor.examination.package_version", lambda: "2.7.0")
    monkeypatch.setenv("HEXSERVE_QNN_LIBRARY_DIR", str(tmp_path))
    checks = list(examine(None, fake((STEPS[0], True, "fine"))))
    (failed,) = [check for check in checks if check.status is CheckStatus.FAIL]
    assert failed.name == "QNN libraries" and f"in {tmp_path}" in failed.text


def fake(*steps: tuple[str, bool, str], end: str = "") -> tuple[str, ...]:
    lines = [json.dumps({"step": step, "ok": ok, "text": text}) for step, ok, text in steps]
    return (sys.executable, "-c", f"print({chr(10).join(lines)!r}, flush=True); {end or 'pass'}")


def test_a_failing_step_ends_with_the_known_sentence() -> None:
    command = fake((STEPS[0], True, "fine"), (STEPS[1], True, "fine"), (STEPS[2], False, "Error code: 14001 device"))
    checks = list(try_providers(command, STEPS))
    assert [check.status for check in checks] == [CheckStatus.PASS, CheckStatus.PASS, CheckStatus.FAIL]
    assert "Hexagon NPU driver" in checks[-1].advice


def test_a_crash_is_blamed_on_the_step_it_happened_in() -> None:
    crash = "import os, sys; print('NPU crashed. SSR detected', file=sys.stderr, flush=True); os.abort()"
    checks = list(try_providers(fake(*((step, True, "fine") for step in STEPS[:3]), end=crash), STEPS))
    assert (checks[-1].name, checks[-1].status) == ("load", CheckStatus.FAIL)
    assert "crashed and is being restarted" in checks[-1].advice


def test_what_the_libraries_said_before_an_unknown_crash_is_in_the_report(tmp_path: Path) -> None:
    crash = "import os, sys; print('skid 17 at 0xAB', file=sys.stderr, flush=True); os.abort()"
    checks = list(try_providers(fake((STEPS[0], True, "fine"), end=crash), STEPS))
    assert "--report" in checks[-1].advice and "skid" not in line(checks[-1])
    assert write_report(tmp_path / "report.json", checks)
    assert "skid 17 at 0xAB" in json.loads((tmp_path / "report.json").read_text())["checks"][-1]["said"]


def test_a_bundle_can_be_examined(tmp_path: Path) -> None:
    checks = list(examine(tmp_path, fake((STEPS[0], False, "stop here"))))
    assert checks[-1].name == "bundle" and "is not a bundle" in checks[-1].text


def test_lines_and_an_unwritable_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert line(Check("x", CheckStatus.FAIL, "broke", "mend it")).splitlines()[1].strip() == "-> mend it"
    assert not write_report(tmp_path / "no" / "report.json", [])
    assert "cannot be written" in capsys.readouterr().err
