"""How much memory there is."""

from pathlib import Path

import pytest

from engine.isolation.memory import usable_memory


def test_the_smaller_of_machine_and_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr("engine.isolation.memory.CGROUP_LIMIT", limit)
    physical = usable_memory()
    limit.write_text("max\n")
    assert usable_memory() == physical
    if physical:
        limit.write_text("1000000\n")
        assert usable_memory() == 1_000_000
