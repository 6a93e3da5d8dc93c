"""The checks: without the extra, with a wrong folder, and with probes that go wrong."""

from pathlib import Path

import pytest

from engine.doctor.examination import examine, try_providers
from engine.doctor.machine import CheckStatus
from engine.runtime.qnn.probe import STEPS
from tests.engine.doctor.scripted_probe import scripted_probe


def test_without_the_extra_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.doctor.examination.package_version", lambda: "")
    checks = {check.name: check for check in examine(None)}
    assert '-m pip install "hexserve[qnn]"' in checks["QNN libraries"].text
    assert checks["CPU provider"].status is CheckStatus.PASS and checks["result on CPU"].status is CheckStatus.PASS
    assert "compile" not in checks and not [check for check in checks.values() if check.status is CheckStatus.FAIL]


def test_a_folder_without_libraries_is_a_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.doctor.examination.package_version", lambda: "2.7.0")
    monkeypatch.setenv("HEXSERVE_QNN_OPTIONS", f"libraries={tmp_path}")
    checks = list(examine(None, scripted_probe((STEPS[0], True, "fine"))))
    (failed,) = [check for check in checks if check.status is CheckStatus.FAIL]
    assert failed.name == "QNN libraries" and f"in {tmp_path}" in failed.text


def test_a_failing_step_ends_with_the_known_sentence() -> None:
    command = scripted_probe(
        (STEPS[0], True, "fine"), (STEPS[1], True, "fine"), (STEPS[2], False, "Error code: 14001 device")
    )
    checks = list(try_providers(command, STEPS))
    assert [check.status for check in checks] == [CheckStatus.PASS, CheckStatus.PASS, CheckStatus.FAIL]
    assert "Hexagon NPU driver" in checks[-1].advice


def test_a_crash_is_blamed_on_the_step_it_happened_in() -> None:
    crash = "import os, sys; print('NPU crashed. SSR detected', file=sys.stderr, flush=True); os.abort()"
    checks = list(try_providers(scripted_probe(*((step, True, "fine") for step in STEPS[:3]), end=crash), STEPS))
    assert (checks[-1].name, checks[-1].status) == ("load", CheckStatus.FAIL)
    assert "crashed and is being restarted" in checks[-1].advice


def test_a_bundle_can_be_examined(tmp_path: Path) -> None:
    checks = list(examine(tmp_path, scripted_probe((STEPS[0], False, "stop here"))))
    assert checks[-1].name == "bundle" and "is not a bundle" in checks[-1].text
