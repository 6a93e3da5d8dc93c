"""Copies cut into slices are the copies one by one."""

from pathlib import Path

import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from engine.bundle.manifest import load_manifest
from engine.runtime.buffers import linear_graphs, spans


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True), st.booleans())
@example([3, 5], True)
@example(list(range(12)), True)
@example([0, 1, 9, 8], True)
def test_slices_copy_what_pairs_say(columns: list[int], in_order: bool) -> None:
    ordered = sorted(columns) if in_order else columns
    rows = np.arange(4, 4 + len(ordered))
    fresh, expected, copied = np.arange(100), np.full(64, -1), np.full(64, -1)
    expected[ordered] = fresh[rows]
    for row_span, column_span in spans(rows, np.array(ordered)):
        copied[column_span] = fresh[row_span]
    assert (copied == expected).all()


def test_runs_are_slices() -> None:
    assert spans(np.array([2, 3, 4]), np.array([7, 8, 20])) == [
        (slice(2, 4), slice(7, 9)),
        (slice(4, 5), slice(20, 21)),
    ]


def test_linear_graphs_are_in_order(segmented_bundle: Path) -> None:
    manifest = load_manifest(segmented_bundle)
    turned = msgspec.structs.replace(manifest, graphs=manifest.graphs[::-1])
    assert [graph.name for graph in linear_graphs(turned)] == ["linear_1_of_3", "linear_2_of_3", "linear_3_of_3"]
