"""Prompt lookup where nobody said how much: some for a model that decodes token by token, none for the others."""

import msgspec
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.specs import RecurrentSpec
from engine.config import EngineConfig
from engine.worker.settings import AUTO_ROWS, USUAL_ROWS, resolve_lookup
from tests.engine.worker.segmented_runtime import smallest_manifest


@pytest.mark.parametrize(("asked", "settled"), [(AUTO_ROWS, USUAL_ROWS), (0, 0), (9, 9)])
def test_a_model_of_one_token_at_a_time_guesses_unless_told_otherwise(asked: int, settled: int) -> None:
    assert resolve_lookup(smallest_manifest(), EngineConfig("", lookup_rows=asked)).lookup_rows == settled


def test_a_model_with_recurrent_layers_guesses_nothing_by_itself() -> None:
    manifest = with_recurrence(smallest_manifest())
    assert resolve_lookup(manifest, EngineConfig("")).lookup_rows == 0
    assert resolve_lookup(manifest, EngineConfig("", lookup_rows=3)).lookup_rows == 3  # to be refused by name


def with_recurrence(manifest: Manifest) -> Manifest:
    """The same bundle with a recurrent layer."""
    spec = RecurrentSpec(layers=(0,), key_heads=1, value_heads=1, key_dim=8, value_dim=8, kernel=4)
    return msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, recurrent=spec))
