"""The processor's name, and how busy its cores are."""

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.isolation.machine import busy_seconds, has_amx, processor_name, usable_cores, windows_busy_seconds

MODULE = "engine.isolation.machine"
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_proc
def test_a_board_is_named_before_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    board, cores = tmp_path / "model", tmp_path / "cpuinfo"
    monkeypatch.setattr(f"{MODULE}.BOARDS", (str(board),))
    monkeypatch.setattr(f"{MODULE}.CPU_INFO", cores)
    cores.write_text("processor\t: 0\nmodel name\t: AMD Ryzen 7: eight cores\n")
    assert processor_name() == "AMD Ryzen 7: eight cores"
    board.write_text("LENOVO ThinkPad T14s\0qcom,x1e78100\0")
    assert processor_name() == "LENOVO ThinkPad T14s qcom,x1e78100"


@pytest.mark.parametrize(("flags", "expected"), [("fpu amx_int8 sse", True), ("fpu amx_int8x", False), ("", False)])
def test_amx_is_a_flag_of_the_processor(
    flags: str, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cores = tmp_path / "cpuinfo"
    monkeypatch.setattr(f"{MODULE}.CPU_INFO", cores)
    cores.write_text(f"model name\t: amx_int8 of somebody\nflags\t\t: {flags}\n")
    assert has_amx() is expected


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 4), ("150000 100000", 1), ("20000 100000", 1), ("900000 100000", 4), (None, 4)]
)
def test_a_container_uses_no_more_cores_than_it_gets_time_of(
    quota: str | None, cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5, 7}, raising=False)
    monkeypatch.setattr(f"{MODULE}.CGROUP_CPUS", limit := tmp_path / "cpu.max")
    if quota:
        limit.write_text(f"{quota}\n")
    assert usable_cores() == cores


@needs_proc
def test_guests_are_counted_once_and_waiting_is_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = tmp_path / "stat"
    monkeypatch.setattr(f"{MODULE}.CPU_TIMES", times)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    times.write_text("cpu  100 20 30 9000 500 4 5 6 70 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    assert busy_seconds() == pytest.approx(1.65)
    for damaged in ("", "cpu 1 2", "intr 1 2 3 4 5 6", "cpu a b c d e"):
        times.write_text(damaged)
        assert busy_seconds() is None


@needs_proc
def test_work_of_ours_is_among_that_of_all() -> None:
    began = busy_seconds()
    assert began is not None
    while True:  # until the system has counted a tick of it
        now = busy_seconds()
        assert now is not None and now >= began
        if now > began:
            break


@pytest.mark.parametrize(("answers", "expected"), [(1, 7.0), (0, None)])
def test_windows_counts_idle_time_as_the_kernels(
    monkeypatch: pytest.MonkeyPatch, answers: int, expected: float | None
) -> None:
    def fill(*references: Any) -> int:
        for reference, seconds in zip(references, (90, 92, 5), strict=True):
            ctypes.cast(reference, ctypes.POINTER(ctypes.c_uint64)).contents.value = seconds * 10_000_000
        return answers

    kernel = SimpleNamespace(GetSystemTimes=fill)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert windows_busy_seconds() == expected
