"""Masks, control and rows of fused steps against what the contract says, number by number."""

import numpy as np
import pytest

from engine.bundle.fused import shape_for
from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.errors import StepFailed
from engine.runtime.buffers import RotationTables
from engine.runtime.fused import BoundGraph, Placement, place
from engine.runtime.interface import PackedBatch, PackedSegment
from tests.bundles import Bundles

PAST, COLUMNS = 65, 64
ALLOWED, MASKED = 65535, 0


def batch_of(rows: int, *parts: tuple[int, int]) -> PackedBatch:
    """Segments of (count, past), right-aligned as the scheduler's steps are; row r holds token 100 + r."""
    row, segments = rows - sum(count for count, _ in parts), []
    positions = np.zeros(rows, np.int32)
    for index, (count, past) in enumerate(parts):
        segments.append(PackedSegment(row, count, (index,) if past else (), past, past + count))
        positions[row : row + count] = past + np.arange(count)
        row += count
    ids = np.arange(100, 100 + rows, dtype=np.int32)
    last = np.array([segment.end - 1 for segment in segments], np.int64)
    return PackedBatch(StepShape(rows, PAST), ids, positions, last, tuple(segments), COLUMNS)


def filled(bundles: Bundles, layout: str, batch: PackedBatch) -> tuple[Placement, BoundGraph]:
    manifest = load_manifest(bundles(layout))
    assert manifest.fused is not None
    graph = next(graph for graph in manifest.graphs if graph.rows == batch.shape.rows)
    placed = place(batch, shape_for(batch.shape.rows, manifest.fused.decode_slots), COLUMNS)
    inputs = BoundGraph(manifest, graph, None)
    inputs.inputs["attention_mask"][...] = 7  # what an earlier step left must not stay
    inputs.fill(batch, placed, RotationTables(manifest.model))
    return placed, inputs


def golden(rows: int, *seen: tuple[int, int, range]) -> np.ndarray:
    """A mask by hand: for each row how many past columns it sees, and which rows of the step."""
    mask = np.full((rows, PAST + rows), MASKED, np.uint16)
    for row, past, own in seen:
        mask[row, :past] = ALLOWED
        mask[row, [PAST + each for each in own]] = ALLOWED
    return mask


def test_golden_control_and_mask_of_a_tick_with_a_prompt_only(bundles: Bundles) -> None:
    placed, inputs = filled(bundles, "fused", batch_of(8, (3, 5)))
    assert inputs.inputs["fusion_ctrl"].tolist() == [1, 0, 3, 0, 5, 0]
    assert inputs.inputs["fusion_ctrl"].dtype == np.int32
    expected = golden(8, (4, 5, range(4, 5)), (5, 5, range(4, 6)), (6, 5, range(4, 7)))
    np.testing.assert_array_equal(inputs.inputs["attention_mask"][0, 0], expected)
    assert inputs.inputs["input_ids"].tolist() == [[0, 0, 0, 0, 105, 106, 107, 0]]
    assert placed.base == 4


def test_golden_control_and_mask_of_a_tick_with_a_decode_only(bundles: Bundles) -> None:
    _, inputs = filled(bundles, "fused", batch_of(1, (1, 9)))
    assert inputs.inputs["fusion_ctrl"].tolist() == [0, 1, 0, 0, 0, 9]
    np.testing.assert_array_equal(inputs.inputs["attention_mask"][0, 0], golden(1, (0, 9, range(1))))
    _, wide = filled(bundles, "fused", batch_of(8, (1, 9)))  # in a graph that would have room for a prompt
    assert wide.inputs["fusion_ctrl"].tolist() == [0, 1, 0, 0, 0, 9]
    np.testing.assert_array_equal(wide.inputs["attention_mask"][0, 0], golden(8, (7, 9, range(7, 8))))


def test_golden_control_and_mask_of_a_tick_with_both(bundles: Bundles) -> None:
    _, inputs = filled(bundles, "fused", batch_of(8, (2, 4), (1, 9)))
    assert inputs.inputs["fusion_ctrl"].tolist() == [1, 1, 2, 0, 4, 9]
    expected = golden(8, (5, 4, range(5, 6)), (6, 4, range(5, 7)), (7, 9, range(7, 8)))
    np.testing.assert_array_equal(inputs.inputs["attention_mask"][0, 0], expected)
    assert inputs.inputs["input_ids"].tolist() == [[0, 0, 0, 0, 0, 105, 106, 107]]


def test_golden_control_and_mask_with_three_slots(bundles: Bundles) -> None:
    """Decodes take the last slots; one slot holds nothing."""
    placed, inputs = filled(bundles, "fused 3", batch_of(8, (4, 2), (1, 6), (1, 1)))
    assert inputs.inputs["fusion_ctrl"].tolist() == [1, 2, 4, 0, 2, 0, 6, 1]
    prompt = [(row, 2, range(1, row + 1)) for row in range(1, 5)]
    expected = golden(8, *prompt, (6, 6, range(6, 7)), (7, 1, range(7, 8)))
    np.testing.assert_array_equal(inputs.inputs["attention_mask"][0, 0], expected)
    assert [segment is None for segment in placed.segments_by_cache()] == [False, True, False, False]


def test_positions_are_the_rotary_rows(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("fused"))
    _, inputs = filled(bundles, "fused", batch_of(8, (2, 4), (1, 9)))
    angles = np.array([0, 0, 0, 0, 0, 4, 5, 9])[:, None] * np.array(manifest.model.rope.inverse_frequencies)
    np.testing.assert_allclose(inputs.inputs["position_ids_cos"][0, 0], np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(inputs.inputs["position_ids_sin"][0, 0], np.sin(angles), atol=1e-6)


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("decodes", [0, 1])
def test_prompts_end_at_n_minus_2_and_decodes_stand_at_n_minus_1(count: int, decodes: int) -> None:
    batch = batch_of(8, (count, 3), *[(1, 5)] * decodes)
    placed = place(batch, shape_for(8, 1), COLUMNS)
    if count == 1 and not decodes:  # a single row is a decode wherever it comes from
        assert placed.row_of[7] == 7
        return
    assert placed.base == 7 - count
    start = batch.segments[0].start
    assert placed.row_of[start : start + count].tolist() == list(range(7 - count, 7))
    assert placed.row_of[7] == (7 if decodes else 6)
    assert placed.logit_index(batch.logit_rows).tolist() == [0, 1][: 1 + decodes]


def test_overflow_is_an_error_and_nothing_is_clamped() -> None:
    shape = shape_for(8, 1)
    assert place(batch_of(8, (4, 60)), shape, COLUMNS).control()[4] == 60
    for parts in ([(4, 61)], [(2, 0), (1, 64)], [(1, 64)]):
        with pytest.raises(StepFailed, match=r"overflow a cache of 64 KV slots"):
            place(batch_of(8, *parts), shape, COLUMNS)


@pytest.mark.parametrize(
    ("slots", "parts", "words"),
    [
        (1, [(3, 0), (2, 0)], "decodes 1 sequences a row each beside one prompt, not rows 2"),
        (1, [(1, 1), (1, 1), (1, 1)], "not rows 1, 1"),
        (2, [(7, 0)], "7 prompt rows do not fit the 6"),
    ],
)
def test_what_a_graph_cannot_do_is_an_error(slots: int, parts: list[tuple[int, int]], words: str) -> None:
    with pytest.raises(StepFailed, match=words):
        place(batch_of(8, *parts), shape_for(8, slots), COLUMNS)


def test_logits_of_other_rows_are_not_to_be_had() -> None:
    placed = place(batch_of(8, (3, 0), (1, 4)), shape_for(8, 1), COLUMNS)
    with pytest.raises(StepFailed, match="gives logits of its last 2 rows only"):
        placed.logit_index(np.array([4]))
