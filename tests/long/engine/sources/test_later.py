"""A bundle of 8 bits serves while one of 4 bits is chosen, which the next start finds."""

from pathlib import Path

import pytest

from engine.bundle.manifest import load_manifest
from engine.models.config_fields import INT8_SHARE
from engine.models.stored_codes import float_bytes
from engine.sources import resolve
from engine.sources.resolve import resolve_bundle
from engine.sources.retention import LaterCompilations


@pytest.mark.parametrize(("share", "first"), [(0.6, "int8"), (0.9, "int4"), (0.4, "int8")])
def test_8_bits_serve_first_where_they_fit(
    share: float,
    first: str,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """share: of the machine that 8 bits would take."""
    machine = int(float_bytes(tiny_checkpoint) * INT8_SHARE / share)
    monkeypatch.setattr(resolve, "usable_memory", lambda: machine)
    with LaterCompilations() as later:
        found = load_manifest(resolve_bundle(str(tiny_checkpoint), tmp_path, later=later))
        assert found.quant == first
        told = "4 bits are chosen behind this bundle" in capsys.readouterr().err
        assert told == (share == 0.6)
        assert later.wait() == [0] * told
    with LaterCompilations() as later:
        next_one = load_manifest(resolve_bundle(str(tiny_checkpoint), tmp_path, later=later))
        assert next_one.quant == ("int4" if told else first)
        assert (next_one.quality is not None and next_one.quality.level == "good") == (next_one.quant == "int4")
        assert later.wait() == []


def test_8_bits_serve_first_where_memory_is_slow(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resolve, "LEAST_TIMED", 0)
    monkeypatch.setattr(resolve, "memory_rate", lambda: 1.0)
    with LaterCompilations() as later:
        found = load_manifest(resolve_bundle(str(tiny_checkpoint), tmp_path, later=later))
        assert found.quant == "int8"
        assert "tokens a second of memory that reads 0 GB; 4 bits are chosen behind" in capsys.readouterr().err
