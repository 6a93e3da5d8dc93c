"""In the HTP emulator a row's result depends on nothing but what it sees: not on its neighbours, not on its place."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import ShapeTable, StepShape
from engine.core.plan import Segment, StepPlan
from engine.runtime.interface import pack
from engine.runtime.pooled import OnnxRuntime
from engine.runtime.qnn.provider import EMULATOR, qnn_provider
from tests.engine.worker.simulation import sequence_of

PROMPT = tuple((index * 31 + 7) % 3000 for index in range(20))
OTHER = (9, 9, 140, 3, 250, 61, 12, 77, 1000, 2, 401, 8)
LONG = tuple(map(int, np.random.default_rng(1).integers(0, 3000, 80)))
PAGES = tuple(range(6))
SHAPE = StepShape(32, 224)


@pytest.fixture(scope="module", params=["fp16", "parts"])
def runtime(npu_bundle: Callable[[str], Path], request: pytest.FixtureRequest) -> Iterator[OnnxRuntime]:
    folder = npu_bundle(request.param)
    manifest = load_manifest(folder)
    opened = OnnxRuntime(folder, manifest, ShapeTable((SHAPE,), 32, 224), qnn_provider(manifest))
    assert opened.device == EMULATOR
    yield opened
    opened.close()


def segment(name: str, tokens: tuple[int, ...], position: int, pages: tuple[int, ...]) -> Segment:
    columns = tuple(pages[index // 16] * 16 + index % 16 for index in range(position, position + len(tokens)))
    return Segment(sequence_of(name), tokens, position, pages[: -(-position // 16)], position, columns, 1)


def run(runtime: OnnxRuntime, *segments: Segment) -> np.ndarray:
    plan = StepPlan(SHAPE, segments)
    batch = pack(plan, 16)
    logits = runtime.run(batch).decoded().copy()
    rows = [np.arange(start, start + len(part.tokens)) for start, part in zip(batch.starts, segments, strict=True)]
    columns = np.concatenate([np.array(part.targets) for part in segments])
    runtime.keep(np.concatenate(rows).astype(np.int64), columns.astype(np.int64))
    return logits


def test_neighbours_change_no_bit(runtime: OnnxRuntime) -> None:
    """Whoever else is in the step. Rows are right-aligned, so those of the last sequence keep their place."""
    alone = [run(runtime, segment("a", LONG[start : start + 20], start, PAGES))[0] for start in range(0, 80, 20)]
    alone.append(run(runtime, segment("a", (33,), 80, PAGES))[0])
    for count in (1, 12):
        other = segment("b", OTHER[:count], 0, (12,))
        found = [
            run(runtime, other, segment("a", LONG[start : start + 20], start, PAGES))[1] for start in range(0, 80, 20)
        ]
        found.append(run(runtime, segment("c", (4,), 2, (13,)), other, segment("a", (33,), 80, PAGES))[2])
        np.testing.assert_array_equal(found, alone)


def test_other_rows_and_columns_change_the_order_of_half_precision_sums_and_nothing_else(runtime: OnnxRuntime) -> None:
    """Integer graphs change no bit there either: tests/engine/compile/graphs/integer/test_emulator.py."""
    alone = [run(runtime, segment("a", LONG[start : start + 20], start, PAGES))[0] for start in range(0, 80, 20)]
    for seed in (0, 3):
        order = tuple(map(int, np.random.default_rng(seed).permutation(14)))
        mine, theirs = order[: len(PAGES)], order[len(PAGES) :]
        for start, want in zip(range(0, 80, 20), alone, strict=True):
            other = segment("b", OTHER[: 1 + seed], 0, theirs)
            got = run(runtime, segment("a", LONG[start : start + 20], start, mine), other)[0]
            assert np.abs(got - want).max() <= 0.003 * np.abs(want).max()
            assert got.argmax() == want.argmax()


def test_stale_columns_change_no_bit(runtime: OnnxRuntime) -> None:
    run(runtime, segment("a", PROMPT, 0, (0, 1)))
    plan = StepPlan(SHAPE, (segment("a", (33,), 20, (0, 1)),))
    batch = pack(plan, 16)
    clean = runtime.run(batch).decoded().copy()
    pool = runtime._pool.columns
    pool.keys[..., 40:] = 100.0
    pool.values[..., 40:, :] = -100.0
    np.testing.assert_array_equal(runtime.run(batch).decoded(), clean)
