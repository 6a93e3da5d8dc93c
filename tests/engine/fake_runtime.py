"""A runtime whose tokens can be computed by hand. Needs no onnxruntime.

The likeliest next token of a row is `expected_token(tokens it may see, in order of position)`; what a row of a block
says of its own place is `expected_prediction`. A column remembers the token and position that were kept in it, so a
wrong mask, column or position changes the answer.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.bundle.variant import ShapeTable
from engine.errors import StepFailed
from engine.runtime.interface import BlockStore, Logits, PackedBatch, Runtime
from engine.runtime.mask import hide_behind, paint

POISON = 7_777_777
BLOCK_SIZE = 16


def expected_token(seen: Sequence[tuple[int, int]], vocab: int) -> int:
    """Next token after (position, token) pairs: a polynomial hash in order of position, modulo the vocabulary."""
    state = 17
    for position, token in sorted(seen):
        state = (state * 31 + position * 7 + token + 1) % 1_000_003
    return state % vocab


def expected_prediction(seen: Sequence[tuple[int, int]], own: int, vocab: int) -> tuple[int, float]:
    """What a row of a block says of its own position: a token, and how much larger its logit is than all others."""
    token = expected_token([*seen, (POISON, 12_347 * own)], POISON)
    return token % vocab, 1 + token // vocab % 8999 / 1000.0


def visible(batch: PackedBatch, window: int = 0) -> NDArray[np.bool_]:
    """What each row attends to, bool [N, C]. window: columns, 0 = all."""
    mask = np.empty((batch.shape.rows, batch.shape.context), np.bool_)
    paint(mask=mask, batch=batch, codes=np.array([False, True]))
    if window:
        hide_behind(batch, mask, np.False_, window)
    return mask


class FakeRuntime(Runtime, BlockStore):
    """Keeps (position, token) where a real runtime keeps keys and values."""

    stores_blocks = True

    def __init__(self, shapes: ShapeTable, columns: int, vocab: int = 50) -> None:
        super().__init__(shapes, "fake")
        self.blocks = self
        self._columns = columns
        self.vocab = vocab
        self.window = 0  # columns that a row sees, 0 = all
        # Columns never written hold POISON: reading one through a wrong mask changes the next token.
        self._pool = np.full((columns, 2), POISON, np.int64)
        self._fresh: NDArray[np.int64] = np.empty((0, 2), np.int64)
        self._host_cache: dict[bytes, NDArray[np.int64]] = {}
        self.steps: list[PackedBatch] = []
        self.fail_at: int | None = None
        self.damage: frozenset[int] = frozenset()

    def run(self, batch: PackedBatch) -> Logits:
        """One-hot logits [R, vocab] of the hand-computable token."""
        assert batch.shape not in self.shapes.prefill or not len(batch.logit_rows), f"{batch.shape} gives no logits"
        if self.fail_at == len(self.steps):
            self.fail_at = None
            raise StepFailed("the fake runtime was told to fail")
        self.steps.append(batch)
        self._fresh = np.stack([batch.positions, batch.input_ids], axis=1).astype(np.int64)
        seen = self.seen(batch)
        logits = np.zeros((len(batch.logit_rows), self.vocab), np.float32)
        for index, row in enumerate(batch.logit_rows):
            pairs = [(int(position), int(token)) for position, token in seen(int(row))]
            if any(part.block_rows > 1 and part.start <= row < part.end for part in batch.segments):
                token, height = expected_prediction(pairs, int(batch.positions[row]), self.vocab)
                logits[index, token] = height
            else:
                logits[index, expected_token(pairs, self.vocab)] = 10.0
        return Logits.of(logits)

    def seen(self, batch: PackedBatch) -> Callable[[int], NDArray[np.int64]]:
        """What a row may see: (position, token) pairs [M, 2]."""
        past = self._pool[: batch.shape.past]
        if len(past) < batch.shape.past:
            past = np.concatenate([past, np.full((batch.shape.past - len(past), 2), POISON)])
        everything, shown = np.concatenate([past, self._fresh]), visible(batch, self.window)
        return lambda row: everything[shown[row]]

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] that are named in `damage`, once."""
        found = np.array([row for row in rows if row in self.damage], np.int64)
        self.damage = frozenset()
        return found

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Remember the tokens of `rows` [M] in `columns` [M]."""
        self._pool[columns] = self._fresh[rows]

    def offload(self, columns: slice, key: bytes) -> None:
        """Remember the tokens of `columns`, and spoil them where they were."""
        self._host_cache[key] = self._pool[columns].copy()
        self._pool[columns] = POISON

    def load(self, columns: slice, key: bytes) -> None:
        """Put remembered tokens into `columns`."""
        self._pool[columns] = self._host_cache[key]

    def offloaded(self, key: bytes) -> bytes:
        """Remembered tokens as bytes."""
        return self._host_cache[key].tobytes()

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        """Remember tokens."""
        self._host_cache[key] = np.frombuffer(content, np.int64).reshape(-1, 2)

    def evict(self, key: bytes) -> None:
        """Forget them."""
        self._host_cache.pop(key, None)

    def free(self, blocks: Collection[int]) -> None:
        """Spoil the columns."""
        for block in blocks:
            self._pool[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE] = POISON

    def close(self) -> None:
        """Nothing to release."""
