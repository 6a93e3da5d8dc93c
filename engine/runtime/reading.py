"""One text at a time through a runtime that serves nobody: for whoever wants the logits of its tokens."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.bundle.variant import StepShape
from engine.config import BLOCK_SIZE
from engine.runtime.interface import RowLayout, Runtime

READER = "reader"  # owns the states of the text


def read_rows(
    runtime: Runtime, shape: StepShape, tokens: Sequence[int], first: int, wanted: Iterable[int], is_kept: bool
) -> NDArray[np.float32]:
    """Logits of the wanted rows of the tokens from position `first` on, behind those that were kept before."""
    # A block of fused graphs is a whole cache, and a pool need not be whole blocks.
    shapes = runtime.shapes
    size = BLOCK_SIZE if shapes.segmented and not shapes.slots else max(1, shape.past)
    layout = RowLayout(shape, len(tokens))
    row = layout.add(tokens, first, tuple(range(-(-first // size))), first, logits=wanted, owner=READER)
    logits = runtime.run(layout.batch(size)).decoded().copy()
    if is_kept:
        runtime.keep(np.arange(row, row + len(tokens)), np.arange(first, first + len(tokens)))
    return logits


def text_logits(runtime: Runtime, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits of every token [tokens, vocabulary], in steps of the most rows that give those of all of them.

    Not more tokens than a step has columns, and one: nothing reads what the last step computes for others.
    """
    shapes = runtime.shapes
    if shapes.free:
        shape = StepShape(shapes.max_rows, shapes.round_past(len(tokens)))
    else:
        shape = min(shapes.fixed) if shapes.slots else max(shapes.fixed)
    found = []
    for first in range(0, len(tokens), shape.rows):
        part = tokens[first : first + shape.rows]
        found.append(read_rows(runtime, shape, part, first, range(len(part)), first + shape.rows < len(tokens)))
    runtime.forget_states([READER], [])
    return np.concatenate(found)
