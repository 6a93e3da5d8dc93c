"""One text at a time through a runtime that serves nobody: for whoever wants the logits of its tokens."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable, StepShape, shape_table
from engine.config import BLOCK_SIZE
from engine.runtime.interface import RowLayout, Runtime

READER = "reader"  # owns the states of the text
STEP_ROWS = 64


def reading_shapes(manifest: Manifest, rows: int = STEP_ROWS) -> ShapeTable:
    """What whole texts are read in. rows: of a step of free shapes, or those that the model cannot do with fewer of.

    All tokens of a text that graphs without a past read are in one step.
    """
    if manifest.reads_whole_context:
        return shape_table(manifest, manifest.max_context)
    image = manifest.vision.tokens if manifest.vision is not None and manifest.vision.both_ways else 0
    block = manifest.diffusion.block_length if manifest.diffusion is not None else 0
    return shape_table(manifest, max(rows, image, block))


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


def text_logits(runtime: Runtime, tokens: Sequence[int], most: int = 0) -> NDArray[np.float32]:
    """Logits of every token [tokens, vocabulary], in steps of the most rows that give those of all of them.

    Not more tokens than a step has columns, and one: nothing reads what the last step computes for others. most: tokens
    of a step, 0 = as many as it takes.
    """
    shapes = runtime.shapes
    if shapes.free:
        shape = StepShape(min(shapes.max_rows, most or shapes.max_rows), shapes.round_past(len(tokens)))
    else:
        shape = min(shapes.fixed) if shapes.slots else max(shapes.fixed)
    found, count = [], min(shape.rows, most or shape.rows)
    for first in range(0, len(tokens), count):
        part = tokens[first : first + count]
        found.append(read_rows(runtime, shape, part, first, range(len(part)), first + count < len(tokens)))
    runtime.forget_states([READER], [])
    return np.concatenate(found)
