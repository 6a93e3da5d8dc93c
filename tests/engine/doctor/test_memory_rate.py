"""Bytes of memory that are read in a second."""

from itertools import count
from types import SimpleNamespace

import pytest

from engine.doctor import memory_rate as measured
from engine.doctor.memory_rate import memory_rate


def test_the_rate_of_memory_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(step=0.5)
    monkeypatch.setattr(measured, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(measured, "os", SimpleNamespace(cpu_count=lambda: 2))
    assert memory_rate() == 2 * measured.LEAST_READ
