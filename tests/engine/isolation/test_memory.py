"""How much memory there is."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.isolation.machine import usable_memory, windows_memory


def test_the_smaller_of_machine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("engine.isolation.machine.CGROUP_LIMIT", limit)
    physical = usable_memory()
    limit.write_text("max\n")
    assert usable_memory() == physical
    if physical:
        limit.write_text("1000000\n")
        assert usable_memory() == 1_000_000


@pytest.mark.parametrize(("answers", "expected"), [(1, 16 * 1024**3), (0, 0)])
def test_windows_fills_a_structure_that_knows_its_size(
    monkeypatch: pytest.MonkeyPatch, answers: int, expected: int
) -> None:
    def fill(reference: Any) -> int:
        words = ctypes.cast(reference, ctypes.POINTER(ctypes.c_uint32 * 16)).contents
        assert words[0] == 64 == ctypes.sizeof(words)
        words[2], words[3] = 0, 4  # 4 * 2**32, the lower half first
        return answers

    kernel = SimpleNamespace(GlobalMemoryStatusEx=fill)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    assert windows_memory() == expected
