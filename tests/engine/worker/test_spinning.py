"""Whose threads spin: by choice, by the size of the weights, and by what computes."""

from typing import Any

import msgspec
import pytest

from engine.bundle.manifest import FileEntry
from engine.config import EngineConfig
from engine.worker.settings import LEAST_BYTES, resolve_power, resolve_spin
from tests.engine.worker.segmented_runtime import smallest_manifest


@pytest.mark.parametrize(
    ("choice", "weights", "settled"),
    [
        ("auto", LEAST_BYTES, "on"),
        ("auto", LEAST_BYTES - 1, "off"),
        ("on", 1, "on"),
        ("off", LEAST_BYTES, "off"),
    ],
)
def test_who_spins(choice: str, weights: int, settled: str) -> None:
    manifest = msgspec.structs.replace(smallest_manifest(), files={"some.data": FileEntry(weights, "")})
    assert resolve_spin(manifest, EngineConfig(bundle="", spin=choice)).spin == settled


@pytest.mark.parametrize(
    ("cores", "changes", "threads", "spin"),
    [
        (12, {}, 0, "auto"),
        (12, {"power": "saver"}, 6, "off"),
        (3, {"power": "saver"}, 1, "off"),
        (1, {"power": "saver"}, 1, "off"),
        (12, {"power": "saver", "threads": 8, "spin": "on"}, 8, "off"),
    ],
)
def test_a_battery_wants_half_of_the_cores_and_none_that_spins(
    cores: int, changes: dict[str, Any], threads: int, spin: str
) -> None:
    config = resolve_power(EngineConfig(bundle="", **changes), cores)
    assert (config.threads, config.spin) == (threads, spin)
    manifest = msgspec.structs.replace(smallest_manifest(), files={"some.data": FileEntry(LEAST_BYTES, "")})
    assert (resolve_spin(manifest, config).spin == "off") == ("power" in changes)
