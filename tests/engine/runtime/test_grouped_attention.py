"""Tiny real graphs: few rows of a sequence by the graph that reads every key once, beside the operator."""

from pathlib import Path

import numpy as np
import pytest

from engine.bundle.segments import GROUPED_ATTENTION
from engine.runtime.attention import GROUPED_ROWS, WritingBinding
from engine.runtime.segmented import SegmentRuntime
from tests.bundles import Bundles
from tests.engine.runtime.older import without_graphs
from tests.engine.runtime.test_onnx_runtime import OTHER, segment
from tests.engine.runtime.test_onnx_segments import HALF_CACHES, INT8_CACHES, open_segments, run

BLOCKS = tuple(range(8))
PROMPT = tuple((i * 31 + 7) % 256 for i in range(45))  # of 64 columns that there is memory for


def graphs_of(runtime: SegmentRuntime) -> list[str]:
    """The graph of the last step's first sequence, and of its other ones."""
    found = []
    for _, cache in runtime._caches.last:
        layer = list(cache.bound.values())[-1].layers[0]
        found.append(layer.graph.name if isinstance(layer, WritingBinding) else layer.name)
    return found


@pytest.fixture(params=["segments", HALF_CACHES])
def pair(request: pytest.FixtureRequest, bundles: Bundles, tmp_path: Path) -> tuple[SegmentRuntime, SegmentRuntime]:
    """The runtime, and one of the same bundle without the graph."""
    folder = bundles(request.param)
    return open_segments(folder), open_segments(without_graphs(folder, tmp_path / "older", GROUPED_ATTENTION))


def test_few_rows_are_computed_as_by_the_operator(pair: tuple[SegmentRuntime, SegmentRuntime]) -> None:
    """Guesses kept and rejected, beside a prompt and another decode; 4 heads on 2, so two rows make it worth while."""
    logits, names = [], []
    for runtime in pair:
        run(runtime, segment("a", PROMPT, 0, BLOCKS))
        steps = [
            run(runtime, segment("a", (1, 2, 3), 45, BLOCKS, 3), segment("b", OTHER, 0, (20, 21)), keep=False),
            run(runtime, segment("a", (1, 5), 45, BLOCKS, 2), segment("b", OTHER, 0, (20, 21))),
        ]
        found = graphs_of(runtime)
        steps.append(run(runtime, segment("a", (7,), 47, BLOCKS)))
        names.append((found, graphs_of(runtime)))
        steps.append(run(runtime, segment("a", tuple(range(GROUPED_ROWS)), 48, BLOCKS, GROUPED_ROWS)))
        steps.append(run(runtime, segment("a", tuple(range(GROUPED_ROWS + 1)), 56, BLOCKS, GROUPED_ROWS)))
        logits.append(np.concatenate(steps))
    operator = names[1][1][0]
    assert operator in ("attention", "attention_chunk")
    assert names == [(["attention_grouped", operator], [operator]), ([operator, operator], [operator])]
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5, atol=1e-5 if operator == "attention" else 1e-3)


def test_what_lies_behind_the_rows_does_not_count(pair: tuple[SegmentRuntime, SegmentRuntime]) -> None:
    """Not even NaN in memory that nobody has written, nor what a rejected row left there."""
    runtime = pair[0]
    run(runtime, segment("a", PROMPT, 0, BLOCKS))
    _, cache = runtime._caches.last[0]
    for side in (cache.keys, cache.values):
        side[..., len(PROMPT) :, :] = np.nan
    cache.expect_writes(cache.columns)
    spoiled = run(runtime, segment("a", (1, 2), 45, BLOCKS, 2))
    clean = pair[1]
    run(clean, segment("a", PROMPT, 0, BLOCKS))
    np.testing.assert_allclose(spoiled, run(clean, segment("a", (1, 2), 45, BLOCKS, 2)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", [INT8_CACHES, "segments"])
def test_other_caches_and_much_free_memory_keep_the_operator(bundles: Bundles, layout: str) -> None:
    """30 of 64 columns seen: more than a third would be computed for nothing."""
    runtime = open_segments(bundles(layout))
    run(runtime, segment("a", PROMPT[:30], 0, BLOCKS))
    run(runtime, segment("a", (1, 2), 30, BLOCKS, 2))
    assert graphs_of(runtime) == ["attention"]


def test_one_shape_for_every_step_keeps_the_operator(bundles: Bundles) -> None:
    runtime = open_segments(bundles("segments"), pinned=8)
    for start in range(0, 40, 8):
        run(runtime, segment("a", PROMPT[start : start + 8], start, BLOCKS))
    run(runtime, segment("a", PROMPT[40:], 40, BLOCKS))
    run(runtime, segment("a", (1, 2), 45, BLOCKS, 2))
    assert graphs_of(runtime) == ["attention"]
