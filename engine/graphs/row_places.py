"""The order of rows in a pass: sequences that decode keep their place at its end, so that what is bound stays bound."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.graphs.batch import PackedBatch, PackedSegment


@dataclass(frozen=True, slots=True)
class ArrangedBatch:
    """The same pass with its rows in another order: segments stay in the batch's order, with other first rows.

    row_of: int64 [N], the place of each row of the batch.
    """

    batch: PackedBatch
    row_of: NDArray[np.int64]


class RowPlaces:
    """Who decodes at which place, counted from the end. A sequence is known by the id() of an object of its own.

    Where an id has a new owner, that one gets the place of the old one: any place is right.
    """

    def __init__(self) -> None:
        self._decodes: list[int] = []

    def arrange(self, batch: PackedBatch, owners: Sequence[object]) -> ArrangedBatch:
        """Rows of prompts in their order, then single rows by place. owners: of the segments."""
        single = {id(owner): index for index, owner in enumerate(owners) if batch.segments[index].count == 1}
        self._settle(list(single))
        starts: dict[int, int] = {}
        rows = batch.shape.rows
        row = rows - sum(segment.count for segment in batch.segments)
        for index, segment in enumerate(batch.segments):
            if segment.count > 1:
                starts[index] = row
                row += segment.count
        for place, owner in enumerate(self._decodes):
            starts[single[owner]] = rows - 1 - place
        return _arranged(batch, [starts[index] for index in range(len(owners))])

    def _settle(self, decoding: list[int]) -> None:
        """Who is gone leaves a gap that a newcomer or the last one fills; other newcomers come after all."""
        newcomers = [owner for owner in decoding if owner not in self._decodes]
        self._drop_gone(decoding)
        for place, owner in enumerate(self._decodes):
            if owner not in decoding:
                self._decodes[place] = newcomers.pop() if newcomers else self._decodes.pop()
                self._drop_gone(decoding)
        self._decodes += newcomers

    def _drop_gone(self, decoding: list[int]) -> None:
        while self._decodes and self._decodes[-1] not in decoding:
            self._decodes.pop()


def _arranged(batch: PackedBatch, starts: list[int]) -> ArrangedBatch:
    row_of = np.arange(batch.shape.rows)
    segments: list[PackedSegment] = []
    for segment, start in zip(batch.segments, starts, strict=True):
        row_of[segment.start : segment.end] = np.arange(start, start + segment.count)
        segments.append(replace(segment, start=start))
    input_ids, positions = np.empty_like(batch.input_ids), np.empty_like(batch.positions)
    input_ids[row_of], positions[row_of] = batch.input_ids, batch.positions
    moved = replace(
        batch,
        input_ids=input_ids,
        positions=positions,
        logit_rows=row_of[batch.logit_rows],
        segments=tuple(segments),
        embedded=batch.embedded and batch.embedded.moved(row_of),
    )
    return ArrangedBatch(moved, row_of)
