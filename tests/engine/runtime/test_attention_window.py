"""Attention under a window, with and without sinks: by its definition, and by the real graphs against a float model."""

import json
from itertools import pairwise

import numpy as np
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import shape_table
from engine.compile.calibration.forward import reference_logits
from engine.compile.sources.checkpoint import SafetensorsCheckpoint
from engine.models.family import read_network
from engine.runtime.attention import EVERYTHING, AttentionWindow
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.sessions import cpu_provider
from tests.bundles import Bundles
from tests.engine.runtime.test_onnx_runtime import segment
from tests.engine.runtime.test_onnx_segments import run

TEXT = tuple((i * 31 + 7) % 256 for i in range(60))
BLOCKS, OTHERS = (4, 2, 9, 7), (1, 3, 5, 6)
WINDOWS = [AttentionWindow(8), AttentionWindow(8, 3), AttentionWindow(1, 1), AttentionWindow(20, 16)]


def definition(window: AttentionWindow, tokens: int) -> np.ndarray:
    """Which tokens each sees, told one by one."""
    seen = np.zeros((tokens, tokens), np.bool_)
    for row in range(tokens):
        for column in range(row + 1):
            seen[row, column] = column < window.sinks or row - column < (window.recent or tokens)
    return seen


def expected(bundles: Bundles, window: AttentionWindow) -> np.ndarray:
    network = read_network(json.loads((bundles.source / "config.json").read_text()))
    with SafetensorsCheckpoint(bundles.source) as checkpoint:
        return reference_logits(checkpoint, network, np.array(TEXT), definition(window, len(TEXT)))


def open_windowed(bundles: Bundles, window: AttentionWindow, layout: str = "segments") -> SegmentRuntime:
    manifest = load_manifest(bundles(layout))
    return SegmentRuntime(bundles(layout), manifest, shape_table(manifest, 64), cpu_provider(1), (), window)


def in_pieces(runtime: SegmentRuntime, edges: tuple[int, ...], blocks: tuple[int, ...] = BLOCKS) -> np.ndarray:
    pieces = [run(runtime, segment("a", TEXT[first:end], first, blocks, end - first)) for first, end in pairwise(edges)]
    return np.concatenate(pieces)


@pytest.mark.parametrize("window", WINDOWS)
def test_what_a_row_sees(window: AttentionWindow) -> None:
    places = np.arange(40)
    assert (window.visible(places, places) & np.tri(40, dtype=np.bool_) == definition(window, 40)).all()
    hidden = [not definition(window, count)[-1].all() for count in range(1, 41)]
    assert [window.hides_some(count) for count in range(1, 41)] == hidden


def test_without_a_window_nothing_is_hidden() -> None:
    assert not EVERYTHING.hides_some(10**9) and EVERYTHING.visible(np.arange(3), np.arange(9)).all()


@pytest.mark.parametrize(
    "edges", [(0, 60), (0, 7, 8, 30, 31, 60), tuple(range(61))], ids=["whole", "chunks", "decodes"]
)
@pytest.mark.parametrize("window", WINDOWS)
def test_logits_are_those_of_the_definition(bundles: Bundles, window: AttentionWindow, edges: tuple[int, ...]) -> None:
    found = in_pieces(open_windowed(bundles, window), edges)
    np.testing.assert_allclose(found, expected(bundles, window), rtol=1e-4, atol=1e-4)


def test_a_window_makes_a_difference(bundles: Bundles) -> None:
    assert np.abs(expected(bundles, WINDOWS[0]) - expected(bundles, EVERYTHING)).max() > 0.1
    assert np.abs(expected(bundles, WINDOWS[1]) - expected(bundles, WINDOWS[0])).max() > 0.1


def test_int8_caches(bundles: Bundles) -> None:
    found = in_pieces(open_windowed(bundles, WINDOWS[1], "segments int8 caches"), (0, 30, 31, 32, 60))
    wanted = expected(bundles, WINDOWS[1])
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
    assert (found.argmax(axis=1) == wanted.argmax(axis=1)).mean() > 0.9


def test_sequences_within_and_beyond_the_window_share_a_step(bundles: Bundles) -> None:
    window = AttentionWindow(20, 4)
    runtime, wanted = open_windowed(bundles, window), expected(bundles, window)
    in_pieces(runtime, (0, 50))
    both = run(runtime, segment("a", TEXT[50:51], 50, BLOCKS, 1), segment("b", TEXT[:10], 0, OTHERS, 10))
    np.testing.assert_allclose(both[0], wanted[50], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(both[1:], wanted[:10], rtol=1e-4, atol=1e-4)
