"""What a compilation may take and took."""

from pathlib import Path

import pytest

from engine.compile.memory import peak_memory, peak_text, usable_memory


def test_the_smaller_of_machine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("engine.compile.memory.CGROUP_LIMIT", limit)
    physical = usable_memory()
    limit.write_text("max\n")
    assert usable_memory() == physical
    if physical:
        limit.write_text("1000000\n")
        assert usable_memory() == 1_000_000


def test_the_peak_is_told_in_one_line() -> None:
    assert peak_text(1_730_000_000, 40_000_000) == "peak memory 1.7 GB"
    assert peak_text(1_000_000_000, 13_500_000_000) == "peak memory 1.0 GB, its largest process beside it 13.5 GB"
    assert peak_text(0, 0) == ""
    assert peak_text(*peak_memory()).startswith(("peak memory ", ""))
