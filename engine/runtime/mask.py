"""The attention mask of graphs that take one: which of C = P + N columns each of N rows sees."""

from itertools import chain, groupby

import numpy as np

from engine.bundle.tensors import Array
from engine.runtime.interface import PackedBatch, PackedSegment


def paint(batch: PackedBatch, mask: Array, codes: Array, padding_sees: bool = True) -> None:
    """Write the mask [N, C] of graphs that take one; codes [2]: of a column that is hidden, of one that is seen.
    A padding row sees itself alone, so that its softmax is defined; nothing where the graph passes such rows by."""
    shape, seen = batch.shape, codes[1]
    mask.fill(codes[0])
    lone = [segment for segment in batch.segments if _is_lone(segment, batch.block_size, shape.context)]
    done = {segment.start for segment in lone}
    own = np.arange(shape.rows) if padding_sees else np.array(sorted(done), np.int64)
    mask[own, shape.past + own] = seen
    _show_pasts(mask, lone, batch.block_size, codes)
    for segment in batch.segments:
        if segment.start in done:
            continue
        rows = slice(segment.start, segment.end)
        _show_past(mask[rows], segment, batch.block_size, seen)
        if segment.tree is not None:
            mask[segment.start + segment.tree.nodes : segment.end, : segment.tree.prefix] = seen
        own_rows = codes[segment.visible_rows().view(np.int8)]
        mask[rows, shape.past + segment.start : shape.past + segment.end] = own_rows


def _is_lone(segment: PackedSegment, block_size: int, context: int) -> bool:
    """Whether it is one row whose past fills all its blocks but the last."""
    if segment.count != 1 or segment.tree is not None or not segment.blocks:
        return False
    unfilled = len(segment.blocks) * block_size - segment.past
    return 0 <= unfilled < block_size and (max(segment.blocks) + 1) * block_size <= context


def _show_pasts(mask: Array, lone: list[PackedSegment], block_size: int, codes: Array) -> None:
    """Open the cached columns of single rows, all blocks at once, and close what the last block of each has beyond."""
    if not lone:
        return
    whole = mask.shape[1] // block_size
    blocks = mask[:, : whole * block_size].reshape(len(mask), whole, block_size)
    rows = np.repeat([segment.start for segment in lone], [len(segment.blocks) for segment in lone])
    blocks[rows, np.fromiter(chain.from_iterable(segment.blocks for segment in lone), np.int64, len(rows))] = codes[1]
    for segment in lone:
        end = (segment.blocks[-1] + 1) * block_size
        mask[segment.start, end - (len(segment.blocks) * block_size - segment.past) : end] = codes[0]


def _show_past(rows: Array, segment: PackedSegment, block_size: int, seen: np.generic) -> None:
    """Open the segment's cached columns; runs of adjacent blocks are one slice."""
    left = segment.past
    for _, run in groupby(enumerate(segment.blocks), key=lambda item: item[1] - item[0]):
        blocks = [block for _, block in run]
        width = min(left, len(blocks) * block_size)
        rows[:, blocks[0] * block_size : blocks[0] * block_size + width] = seen
        left -= width


def hide_behind(batch: PackedBatch, mask: Array, hidden: np.generic, window: int) -> None:
    """Close in a painted mask [N, C] what lies `window` tokens or more before each row."""
    for segment in batch.segments:
        first = segment.past - window + 1  # the token that a first row no longer sees is the one before
        if first + segment.count <= 0:
            continue
        blocks = np.asarray(segment.blocks, np.int64)[:, None] * batch.block_size + np.arange(batch.block_size)
        own = np.arange(batch.shape.past + segment.start, batch.shape.past + segment.end)
        columns = np.concatenate([blocks.reshape(-1)[: segment.past], own])
        rows = np.arange(segment.start, segment.end)
        fresh = segment.past + batch.positions[rows] - batch.positions[segment.start]  # counted from the first column
        behind = np.concatenate([np.arange(segment.past), fresh])[None, :] <= fresh[:, None] - window
        at = np.nonzero(behind)
        mask[rows[at[0]], columns[at[1]]] = hidden
