"""What the host computes for one pass of an exported graph: positions, attention mask, insert matrix, keep mask. Pure.

b sequences, blocks of B tokens, M cache columns. A sequence's cache holds its first `start` tokens, and the active
block is computed at positions start to start + B. Masks have a first axis of 1: every layer has the same.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
HIDDEN = np.float32(-10_000.0)  # exp(-10000) is 0 in every float type


def block_positions(starts: Sequence[int], block: int) -> NDArray[np.int32]:
    """[b, B]: the positions of the active region."""
    return (np.asarray(starts)[:, None] + np.arange(block)).astype(np.int32)


def attention_mask(starts: Sequence[int], block: int, context: int, lengths: Sequence[int] | None = None) -> Array:
    """[1, b, 1, B, M + B]: 0 where a row of the block sees a column, `HIDDEN` elsewhere.

    The columns are the cache's and then the block's own. lengths: tokens of each block that count, None = all; those
    behind are padding, which no token sees.
    """
    counts = np.full(len(starts), block) if lengths is None else np.asarray(lengths)
    columns = np.arange(context + block)
    is_committed = columns[None, :] < np.asarray(starts)[:, None]
    is_fresh = (columns[None, :] >= context) & (columns[None, :] < context + counts[:, None])
    visible = np.broadcast_to((is_committed | is_fresh)[None, :, None, None], (1, len(starts), 1, block, len(columns)))
    return np.where(visible, np.float32(0.0), HIDDEN)


def insert_matrix(starts: Sequence[int | None], block: int, context: int) -> Array:
    """[1, b, 1, M, B]: 1 at [start + i, i]; all 0 for a sequence whose start is None, which writes nothing."""
    matrix = np.zeros((1, len(starts), 1, context, block), np.float32)
    for sequence, start in enumerate(starts):
        if start is not None:
            _check_fits(start, block, context)
            matrix[0, sequence, 0, np.arange(start, start + block), np.arange(block)] = 1.0
    return matrix


def keep_mask(starts: Sequence[int | None], block: int, context: int) -> Array:
    """[1, b, 1, M, 1]: 0 at the columns start to start + B, which the block overwrites, and 1 at all that stay."""
    mask = np.ones((1, len(starts), 1, context, 1), np.float32)
    for sequence, start in enumerate(starts):
        if start is not None:
            _check_fits(start, block, context)
            mask[0, sequence, 0, start : start + block] = 0.0
    return mask


def for_layers(mask: Array, layers: int) -> Array:
    """A mask [1, ...] as graphs with masks of their own for each layer take it: [layers, ...]."""
    return np.ascontiguousarray(np.broadcast_to(mask, (layers, *mask.shape[1:])))


def _check_fits(start: int, block: int, context: int) -> None:
    if not 0 <= start <= context - block:
        raise ValueError(f"a block of {block} at column {start} is outside a cache of {context} columns")
