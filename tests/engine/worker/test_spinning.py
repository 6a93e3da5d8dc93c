"""Whose threads spin: by choice, by the size of the weights, and by what computes."""

import msgspec
import pytest

from engine.bundle.manifest import FileEntry
from engine.config import EngineConfig
from engine.worker.spinning import LEAST_BYTES, settle_spin
from tests.engine.worker.segmented_runtime import smallest_manifest


@pytest.mark.parametrize(
    ("choice", "weights", "paced", "settled"),
    [
        ("auto", LEAST_BYTES, "", "on"),
        ("auto", LEAST_BYTES - 1, "", "off"),
        ("on", 1, "", "on"),
        ("off", LEAST_BYTES, "", "off"),
        ("on", LEAST_BYTES, "x-elite/llama-3.2-3b", "off"),
    ],
)
def test_who_spins(choice: str, weights: int, paced: str, settled: str) -> None:
    manifest = msgspec.structs.replace(smallest_manifest(), files={"some.data": FileEntry(weights, "")})
    assert settle_spin(manifest, EngineConfig(bundle="", spin=choice, paced=paced)).spin == settled
