"""The segmented fake with recurrent layers: a state says what the keys and values say, or a test fails."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from engine.bundle.specs import RecurrentSpec
from engine.bundle.variant import ShapeTable
from engine.runtime.interface import Logits, PackedBatch
from engine.runtime.recurrent import RecurrentStates
from tests.engine.worker.segmented_runtime import SegmentedFake

SMALLEST = RecurrentSpec(layers=(0,), key_heads=1, value_heads=1, key_dim=2, value_dim=2, kernel=2)
MODULUS = 1_000_003  # of the fake's hash: float32 has it exactly


class RecurrentFake(SegmentedFake):
    """The hash of a sequence's tokens is carried from row to row and never computed from the columns."""

    def __init__(self, shapes: ShapeTable, columns: int, vocab: int = 50) -> None:
        super().__init__(shapes, columns, vocab)
        self.states = RecurrentStates(SMALLEST)

    def run(self, batch: PackedBatch) -> Logits:
        steps = self.states.begin(batch)
        logits = super().run(batch)
        hashes: dict[int, int] = {}
        for segment, own in zip(batch.segments, steps, strict=True):
            for step in own:
                value = int(step.source.memories.flat[0]) if step.source.tokens else 17
                step.target.memories[...] = -1
                for row in range(segment.start + step.start, segment.start + step.start + step.count):
                    value = (value * 31 + int(batch.positions[row]) * 7 + int(batch.input_ids[row]) + 1) % MODULUS
                    hashes[row] = value
                step.target.memories.flat[0] = value
        found = logits.decoded().argmax(axis=1).tolist()
        assert found == [hashes[int(row)] % self.vocab for row in batch.logit_rows], "a state is another sequence's"
        return logits

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        super().keep(rows, columns)
        self.states.keep(frozenset(rows.tolist()))

    def forget_states(self, sequences: Collection[str], snapshots: Collection[bytes]) -> None:
        self.states.forget(sequences, snapshots)
