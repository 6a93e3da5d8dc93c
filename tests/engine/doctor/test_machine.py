"""Chips and drivers, as machines that are not here would tell them."""

import pytest

from engine.doctor.machine import HtpTarget, chip_of, judge_accelerators, judge_nodes


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
