"""Logits of whole texts from the runtime that serves, for graphs of forms that the compiler itself does not write."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import PassShape, ShapeTable
from engine.compile.parity import graphs_of
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.onnx_runtime import OnnxRuntime
from engine.graphs.onnx_sessions import Provider

CHAINED = {"input_ids", "attention_mask", "position_ids_cos", "position_ids_sin"}


def is_chained(manifest: Manifest, shape: PassShape | None) -> bool:
    """Whether one part after the other has all inputs: caches by layer, and what the parts before it gave."""
    layers = range(manifest.model.layers)
    known = CHAINED | {f"past_{kind}_{layer}_in" for kind in ("key", "value") for layer in layers}
    for graph in graphs_of(manifest, shape):
        if any(tensor.name not in known for tensor in graph.inputs):
            return False
        known |= {tensor.name for tensor in graph.outputs}
    return True


class PoolReader:
    """One text at a time in the first columns of the pool, in passes of one fixed shape with a past."""

    def __init__(self, folder: Path, manifest: Manifest, shape: PassShape, provider: Provider) -> None:
        self._shape = shape
        self._runtime = OnnxRuntime(folder, manifest, ShapeTable((shape,), shape.rows, shape.past), 1, provider)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Of every token [tokens, vocab], at most one more than there are columns."""
        found = []
        for start in range(0, len(tokens), self._shape.rows):
            part = tokens[start : start + self._shape.rows]
            batch = self._batch(part, start)
            found.append(self._runtime.run(batch).decoded().copy())
            kept = min(len(part), self._shape.past - start)  # nothing reads the last token's keys and values
            first = self._shape.rows - len(part)
            self._runtime.keep(0, first + np.arange(kept), start + np.arange(kept))
        return np.concatenate(found)

    def close(self) -> None:
        """Let the graphs go."""
        self._runtime.close()

    def _batch(self, part: Sequence[int], past: int) -> PackedBatch:
        count, first = len(part), self._shape.rows - len(part)
        ids, positions = np.zeros(self._shape.rows, np.int32), np.zeros(self._shape.rows, np.int32)
        ids[first:] = part
        positions[first:] = past + np.arange(count)
        segment = PackedSegment(first, count, (0,) if past else (), past, past + count)
        rows = first + np.arange(count)
        return PackedBatch(self._shape, 0, ids, positions, rows, (segment,), page_columns=self._shape.past)
