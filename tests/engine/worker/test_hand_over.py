"""A sequence that another worker goes on with has the tokens that this worker alone would give it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.bundle.manifest import load_manifest
from engine.runtime.block_values import BlockValues
from engine.worker.kv_file import KEY_BYTES
from tests.bundles import Bundles
from tests.engine.worker.movers import PROMPT, alone, moved, opened


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("free", "segments"),
        ("segments", "free"),
        ("fixed", "segments"),
        ("segments int8 caches", "segments"),
        ("free", "segments int8 caches"),
    ],
)
@pytest.mark.parametrize("after", [1, 13])
def test_tokens_are_those_of_one_worker(first: str, second: str, after: int, bundles: Bundles, tmp_path: Path) -> None:
    found, taken_over = moved(bundles(first), bundles(second), after, tmp_path)
    assert found == alone(bundles("segments"))
    assert taken_over == (len(PROMPT) + after - 1) // 16 * 16


def test_values_are_told_and_stored_alike(bundles: Bundles) -> None:
    """Floats come back as they were; codes too, as their values are in their own steps."""
    generator = np.random.default_rng(0)
    for layout in ("free", "segments", "segments int8 caches"):
        folder = bundles(layout)
        manifest = load_manifest(folder)
        values, model = BlockValues(folder, manifest), manifest.model
        pair = generator.normal(size=(2, model.layers, model.kv_heads, 16, model.head_dim)).astype(np.float32)
        content = values.write(pair)
        assert len(content) == 16 * manifest.kv_bytes_per_token
        assert values.write(values.read(content)) == content
        if manifest.kv_dtype == "float32":
            assert np.array_equal(values.read(content), pair)


def _write(path: Path, values: NDArray[np.float32]) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.ones((len(values), KEY_BYTES), np.uint8))
        np.save(stream, values)


def test_what_cannot_be_read_is_computed(bundles: Bundles, tmp_path: Path) -> None:
    worker = opened(bundles("segments"))
    assert worker.mover
    for content in (b"", b"no array", (tmp_path / "missing").name.encode()):
        path = tmp_path / "caches"
        path.write_bytes(content)
        assert worker.mover.take(path) == 0 and not path.exists()
    assert worker.mover.take(tmp_path / "missing") == 0
    _write(tmp_path / "caches", np.zeros((1, 2, 1, 1, 16, 1), np.float32))  # of another model
    assert worker.mover.take(tmp_path / "caches") == 0
    assert not list(worker.loop.violations())
    worker.loop.close()
    worker.runtime.close()
