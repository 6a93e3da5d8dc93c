"""Whose threads spin: by choice, by the size of the weights, and by what computes."""

import msgspec
import pytest

from engine.bundle.manifest import FileEntry
from engine.config import EngineConfig
from engine.worker.settings import LEAST_BYTES, resolve_spin
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
