"""Chips and drivers, as machines that are not here would tell them."""

import pytest
from msgspec.structs import replace

from engine.doctor.machine import (
    Accelerator,
    CheckStatus,
    DeviceNode,
    HtpTarget,
    accelerator_check,
    chip_of,
    node_check,
)
from tests.engine.doctor.machines import WINDOWS


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
    here = node_check((DeviceNode("/dev/fastrpc-cdsp"),))
    assert (here.status, here.text) == (CheckStatus.PASS, "/dev/fastrpc-cdsp")
    assert "cannot be opened by this user" in node_check((DeviceNode("/dev/fastrpc-cdsp", may_open=False),)).text
    assert (
        "no fastrpc node of the compute DSP (found: /dev/fastrpc-adsp)"
        in node_check((DeviceNode("/dev/fastrpc-adsp"),)).text
    )
    hexagon = ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Hexagon(TM) NPU", "30.0.140.1000")
    listed = accelerator_check(replace(WINDOWS, accelerators=(Accelerator(*hexagon),)))
    assert (listed.status, listed.text) == (CheckStatus.PASS, " ".join(hexagon))
    assert accelerator_check(replace(WINDOWS, accelerators=())).status is CheckStatus.FAIL
