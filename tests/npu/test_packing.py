"""In the HTP emulator a row's result depends on nothing but what it sees: not on its neighbours, not on its place."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import PassShape, ShapeTable
from engine.graphs.batch import pack
from engine.graphs.onnx_qnn import EMULATOR, qnn_provider
from engine.graphs.onnx_runtime import OnnxRuntime
from engine.plan import Segment, StepPlan

PROMPT = tuple((index * 31 + 7) % 3000 for index in range(20))
OTHER = (9, 9, 140, 3, 250, 61, 12)
SHAPE = PassShape(32, 224)


@pytest.fixture(scope="module", params=["fp16", "parts"])
def runtime(npu_bundle: Callable[[str], Path], request: pytest.FixtureRequest) -> Iterator[OnnxRuntime]:
    folder = npu_bundle(request.param)
    manifest = load_manifest(folder)
    opened = OnnxRuntime(folder, manifest, ShapeTable((SHAPE,), 32, 224), 1, qnn_provider(manifest))
    assert opened.device == EMULATOR
    yield opened
    opened.close()


def segment(name: str, tokens: tuple[int, ...], position: int, pages: tuple[int, ...]) -> Segment:
    columns = tuple(pages[index // 16] * 16 + index % 16 for index in range(position, position + len(tokens)))
    return Segment(name, tokens, position, pages[: -(-position // 16)], position, columns, 1)


def run(runtime: OnnxRuntime, *segments: Segment) -> np.ndarray:
    plan = StepPlan(SHAPE, 0, segments)
    batch = pack(plan, 16)
    logits = runtime.run(batch)
    rows = [np.arange(start, start + len(part.tokens)) for start, part in zip(batch.starts, segments, strict=True)]
    columns = np.concatenate([np.array(part.targets) for part in segments])
    runtime.keep(0, np.concatenate(rows).astype(np.int64), columns.astype(np.int64))
    return logits


def test_packed_equals_solo_bit_for_bit_wherever_rows_and_columns_lie(runtime: OnnxRuntime) -> None:
    """Neighbours change no bit. Another order of rows and columns is another order of half-precision sums."""
    first = run(runtime, segment("a", PROMPT, 0, (0, 1)))
    then = run(runtime, segment("a", (33,), 20, (0, 1)))
    beside = run(runtime, segment("b", OTHER, 0, (12,)), segment("a", PROMPT, 0, (0, 1)))
    after = run(runtime, segment("b", (1,), 7, (12,)), segment("a", (33,), 20, (0, 1)))
    np.testing.assert_array_equal(beside[1], first[0])
    np.testing.assert_array_equal(after[1], then[0])
    # The same rows behind and before another sequence, over other columns in another order.
    packed = run(runtime, segment("a", PROMPT, 0, (9, 3)), segment("b", OTHER, 0, (12,)))
    moved = run(runtime, segment("c", (5, 6), 0, (13,)), segment("a", (33,), 20, (9, 3)), segment("b", (1,), 7, (12,)))
    for got, want in ((packed[0], first[0]), (moved[1], then[0])):
        assert np.abs(got - want).max() <= 0.02 * np.abs(want).max()
        assert got.argmax() == want.argmax()


def test_stale_columns_change_no_bit(runtime: OnnxRuntime) -> None:
    run(runtime, segment("a", PROMPT, 0, (0, 1)))
    plan = StepPlan(SHAPE, 0, (segment("a", (33,), 20, (0, 1)),))
    batch = pack(plan, 16)
    clean = runtime.run(batch)
    pool = runtime._pools[0]
    pool.keys[..., 40:] = 100.0
    pool.values[..., 40:, :] = -100.0
    np.testing.assert_array_equal(runtime.run(batch), clean)
