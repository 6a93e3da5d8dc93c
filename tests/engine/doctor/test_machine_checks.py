"""Each failure that people have met is one line and what helps; a machine that is well has none."""

import pytest

from engine.doctor.examination import examine
from engine.doctor.machine import (
    CheckStatus,
    MachineFacts,
    chip_of,
    is_snapdragon,
    is_too_old,
    machine_checks,
    machine_facts,
)
from engine.runtime.qnn.probe import STEPS
from engine.runtime.qnn.provider import HtpTarget
from server.commands.doctor import line
from tests.engine.doctor.machines import BROKEN, WELL, WINDOWS
from tests.engine.doctor.scripted_probe import scripted_probe


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_machine_is_told_once_and_what_helps(name: str) -> None:
    facts, check, text, advice = BROKEN[name]
    (failed,) = [each for each in machine_checks(facts) if each.status is CheckStatus.FAIL]
    assert failed.name == check and text in failed.text and advice in failed.advice
    assert len(line(failed).splitlines()) == 2


@pytest.mark.parametrize("name", WELL)
def test_a_machine_that_is_well_is_not_complained_about(name: str) -> None:
    assert [each for each in machine_checks(WELL[name]) if each.status is CheckStatus.FAIL] == []


@pytest.mark.parametrize("name", BROKEN)
def test_doctor_tells_no_second_failure_that_follows_from_the_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The NPU is not tried: its libraries would fail in their own words."""
    monkeypatch.setattr("engine.doctor.examination.machine_facts", lambda: BROKEN[name][0])
    monkeypatch.setattr("engine.doctor.examination.runtime_version", lambda: "2.7.0")
    steps = [(STEPS[0], True, "fine"), (STEPS[1], False, "Error code: 14001 device")]
    checks = list(examine(None, scripted_probe(*steps)))
    assert [check.name for check in checks if check.status is CheckStatus.FAIL] == [BROKEN[name][1]]
    assert checks[-1].status is CheckStatus.SKIP and checks[-1].text.startswith("not tried")


def test_what_the_npu_says_is_told_where_the_machine_looks_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.doctor.examination.machine_facts", lambda: WINDOWS)
    monkeypatch.setattr("engine.doctor.examination.package_version", lambda: "2.7.0")
    monkeypatch.setattr("engine.doctor.examination.runtime_version", lambda: "2.7.0")
    monkeypatch.setattr("engine.doctor.examination.library_folder", lambda: WINDOWS.library_folder)
    steps = [(STEPS[0], True, "fine"), (STEPS[1], False, "Error code: 14001 device")]
    checks = list(examine(None, scripted_probe(*steps)))
    assert [check.name for check in checks if check.status is CheckStatus.FAIL] == [STEPS[1]]


def test_the_chip_of_a_broken_machine_is_told_all_the_same() -> None:
    chips = {each.name: each for each in machine_checks(BROKEN["no driver"][0])}
    assert chips["chip"].text.endswith("soc_model 60, Hexagon v73")


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("Snapdragon(R) X Elite - X1E001DE - Qualcomm(R) Oryon(TM) CPU", HtpTarget(60, 73)),
        ("Snapdragon(R) X Plus - X1P46100 - Qualcomm(R) Oryon(TM) CPU", HtpTarget(60, 73)),
        ("Snapdragon(R) X - X126100 - Qualcomm(R) Oryon(TM) CPU", HtpTarget(60, 73)),
        ("qcom,x1p42100 qcom,purwa", HtpTarget(60, 73)),
        ("Snapdragon(R) X2 Elite - X2E84100 - Qualcomm Oryon(TM) CPU", HtpTarget(88, 81)),
        ("Snapdragon(R) X2 Plus - X2P42100 - Qualcomm Oryon(TM) CPU", HtpTarget(88, 81)),
        ("qcom,glymur-crd qcom,glymur", HtpTarget(88, 81)),
    ],
)
def test_other_names_of_known_chips(name: str, chip: HtpTarget) -> None:
    assert chip_of(name) == chip and is_snapdragon(name) and not is_too_old(name)


@pytest.mark.parametrize(
    ("name", "is_old"),
    [
        ("Snapdragon (TM) 8cx Gen 3 @ 3.0 GHz", True),
        ("Microsoft SQ3 @ 3.0 GHz", True),
        ("Microsoft(R) SQ2", True),
        ("qcom,sc8280xp", True),
        ("AMD EPYC 7C13 64-Core Processor", False),
        ("Intel(R) Core(TM) Ultra 7", False),
        ("", False),
    ],
)
def test_chips_of_before(name: str, is_old: bool) -> None:
    assert is_too_old(name) is is_old and is_snapdragon(name) is is_old


def test_this_machine_reports_itself() -> None:
    facts = machine_facts()
    assert isinstance(facts, MachineFacts) and facts.machine and facts.system
    assert [each for each in machine_checks(facts) if each.status is CheckStatus.FAIL] == []
