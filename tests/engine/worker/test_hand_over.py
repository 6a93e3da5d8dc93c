"""A sequence that another worker goes on with has the tokens that this worker alone would give it."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest, load_manifest
from engine.compile.check.parity import all_divergences
from engine.config import BLOCK_SIZE
from engine.runtime.block_values import BlockValues
from engine.worker import kv_file
from engine.worker.kv_file import KEY_BYTES
from tests.bundles import Bundles
from tests.engine.worker.movers import PROMPT, Forced, alone, moved, opened
from tests.engine.worker.simulation import free, simulate

PROMPTS, ANSWER = 2, 20
MORE = 1.1  # as in the rule of fidelity


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("segments int4 float caches", "segments int8 caches"),
        ("segments int8", "segments int4"),
        ("free int4", "segments int4"),
    ],
)
def test_two_storages_together_lose_no_more_than_the_worse_of_them(
    first: str, second: str, bundles: Bundles, tmp_path: Path
) -> None:
    """KL from the float model, of all tokens that one device writes over what the other one has read."""
    floats, one, other = workers = [Forced(bundles(layout)) for layout in ("segments", first, second)]
    found: dict[str, list[float]] = {}
    path = tmp_path / "caches"
    for shift in range(PROMPTS):
        prompt = tuple(3 + (7 * index + 31 * shift) % 250 for index in range(75))
        answer = floats.chosen(prompt, ANSWER)
        expected = floats.logits(prompt, answer)

        def note(name: str, worker: Forced, salt: bytes = b"") -> None:
            found.setdefault(name, []).extend(all_divergences(expected, worker.logits(prompt, answer, salt)))  # noqa: B023

        note("one", one)
        note("other", other)
        for giver, taker, name in ((one, other, "one, other"), (other, one, "other, one")):
            given = giver.give(prompt, name.encode(), path)
            assert taker.take(path) == given == len(prompt) // BLOCK_SIZE
            note(name, taker, name.encode())
    means = {name: float(np.mean(values)) for name, values in found.items()}
    worse = max(means["one"], means["other"])
    assert max(means["one, other"], means["other, one"]) <= MORE * worse, means
    for worker in workers:
        worker.close()


def test_values_are_told_and_stored_alike(bundles: Bundles) -> None:
    """Floats come back as they were; codes too, as their values are in their own steps."""
    generator = np.random.default_rng(0)
    for layout in ("free", "segments", "segments int8 caches", "segments float16 caches"):
        folder = bundles(layout)
        manifest = load_manifest(folder)
        values, model = BlockValues(folder, manifest), manifest.model
        pair = generator.normal(size=(2, model.layers, model.kv_heads, 16, model.head_dim)).astype(np.float32)
        content = values.write(pair)
        assert len(content) == 16 * manifest.kv_bytes_per_token
        assert values.write(values.read(content)) == content
        if manifest.kv_dtype == "float32":
            assert np.array_equal(values.read(content), pair)


def test_what_half_precision_cannot_hold_is_its_largest(bundles: Bundles) -> None:
    folder = bundles("segments float16 caches")
    values, model = BlockValues(folder, load_manifest(folder)), load_manifest(folder).model
    pair = np.full((2, model.layers, model.kv_heads, 16, model.head_dim), -1e6, np.float32)
    assert np.all(values.read(values.write(pair)) == np.finfo(np.float16).min)


def _write(path: Path, values: NDArray[np.float32]) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.ones((len(values), KEY_BYTES), np.uint8))
        np.save(stream, values)


def test_the_beginning_of_what_is_taken_is_kept_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the rest is found by. A pool that is too small for all has it, and a newcomer takes the end."""
    content = np.zeros((BLOCK_SIZE, 2), np.int64).tobytes()
    monkeypatch.setattr(kv_file, "BlockValues", lambda *_: SimpleNamespace(write=lambda pair: content))
    world = simulate(free(16, 8 * BLOCK_SIZE), max_context=1000)
    mover = kv_file.SequenceMover(tmp_path, cast("Manifest", None), world.scheduler, world.runtime)
    blocks = world.scheduler.blocks
    keys = np.arange(blocks.available + 2, dtype=np.uint8)[:, None].repeat(KEY_BYTES, axis=1)
    with (tmp_path / "caches").open("wb") as stream:
        np.save(stream, keys)
        np.save(stream, np.zeros((len(keys), 1)))
    mover.take(tmp_path / "caches")
    names = [key.tobytes() for key in keys]
    assert len(blocks.lookup(names)) == blocks.available
    blocks.release(blocks.allocate(1) or [])
    assert len(blocks.lookup(names)) == blocks.available - 1


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
