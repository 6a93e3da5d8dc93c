"""Where the blocks of a pool lie in layers with a window, which have fewer columns than those that see everything.
The scheduler counts the blocks that rows still see there (`core/window_blocks.py`) and says which are not wanted any
more. A block gets a place when it is written first."""

import heapq
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from engine.bundle.tensors import Array
from engine.config import BLOCK_SIZE
from engine.errors import StepFailed

NOBODY = -1
Move = tuple[slice, slice]  # columns before, columns after


class WindowColumns:
    """Sole owner of the places, of `BLOCK_SIZE` columns each.
    width: of the pool; most: columns of these layers. A pool that is no wider has every block where it is in others."""

    def __init__(self, width: int, most: int) -> None:
        self._width, self._most = width, most
        self._place_of: dict[int, int] = {}
        self._free = list(range(most // BLOCK_SIZE))  # of a pool that is wider
        self._shown = np.full(self.columns, NOBODY, np.int64)  # which column of the pool lies in each of these

    @property
    def columns(self) -> int:
        """That these layers have now."""
        return min(self._width, self._most)

    def place(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The columns that `slots` [M] of the pool have here; a block without a place gets one, or StepFailed."""
        blocks, inside = np.divmod(slots, BLOCK_SIZE)
        places = {int(block): self._take(int(block)) for block in np.unique(blocks)}
        return np.array([places[int(block)] for block in blocks], np.int64) * BLOCK_SIZE + inside

    def forget(self, blocks: Iterable[int]) -> None:
        """Nobody sees these blocks any more."""
        for block in blocks:
            if (place := self._place_of.pop(block, None)) is not None:
                self._shown[self._span(place)] = NOBODY
                if self._is_wide:
                    heapq.heappush(self._free, place)

    def relay(self, width: int) -> list[Move]:
        """The pool has another width now: which columns go where. What lies beyond it is lost."""
        self.forget([block for block in self._place_of if block * BLOCK_SIZE >= width])
        before = {block: self._span(place) for block, place in self._place_of.items()}
        self._width = width
        self._shown = np.full(self.columns, NOBODY, np.int64)
        for block, place in self._place_of.items():
            self._settle(block, place if self._is_wide else block)
        taken = set(self._place_of.values())
        self._free = [place for place in range(self._most // BLOCK_SIZE) if place not in taken]
        return [_move(span, self._span(self._place_of[block])) for block, span in before.items()]

    def gather(self, painted: Array, mask: Array, past: int, hidden: np.generic) -> None:
        """Of a mask [N, P + N] over all columns of the pool the one [N, W + N] over these."""
        shown = self._shown[: mask.shape[1] - len(mask)]
        is_there = (shown != NOBODY) & (shown < past)
        mask[:, len(shown) :] = painted[:, past:]
        mask[:, : len(shown)] = np.where(is_there, painted[:, np.where(is_there, shown, 0)], hidden)

    @property
    def _is_wide(self) -> bool:
        return self._width > self._most

    def _take(self, block: int) -> int:
        if block in self._place_of:
            return self._place_of[block]
        if self._is_wide and not self._free:
            raise StepFailed(f"{len(self._place_of)} blocks fill the KV slots of layers with a window")
        return self._settle(block, heapq.heappop(self._free) if self._is_wide else block)

    def _settle(self, block: int, place: int) -> int:
        self._place_of[block] = place
        span = self._span(place)
        self._shown[span] = block * BLOCK_SIZE + np.arange(span.stop - span.start)
        return place

    def _span(self, place: int) -> slice:
        return slice(place * BLOCK_SIZE, min((place + 1) * BLOCK_SIZE, self.columns))


def _move(before: slice, after: slice) -> Move:
    count = min(before.stop - before.start, after.stop - after.start)
    return slice(before.start, before.start + count), slice(after.start, after.start + count)
