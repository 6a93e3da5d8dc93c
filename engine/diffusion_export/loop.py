"""Block diffusion over an exported graph for one prompt: prefill, iterate on the active block, commit, advance.

The cache belongs to the loop and goes through every pass. Only commits write it: clean tokens, never masked ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from engine.diffusion_export.description import INPUTS, BlockExport
from engine.diffusion_export.masks import attention_mask, block_positions, for_layers, insert_matrix, keep_mask

Tensor = NDArray[np.generic]
Forward = Callable[[dict[str, Tensor]], tuple[NDArray[np.float32], Tensor]]


class PassKind(Enum):
    """What a pass does to the cache."""

    ITERATION = "iteration"  # leaves it as it is
    COMMIT = "commit"  # writes the columns of the active block


@dataclass(frozen=True, slots=True)
class LoopOptions:
    """confidence: a token surer than this is kept, and the surest one in any case. longest: tokens of the answer."""

    longest: int
    confidence: float = 0.9


class BlockLoop:
    """One sequence on a graph of batch 1. forward(inputs) -> logits [1, B, vocab] and the updated cache."""

    def __init__(self, export: BlockExport, forward: Forward) -> None:
        if export.batch != 1:
            raise ValueError(f"the loop runs one sequence, the graph takes {export.batch}")
        if export.mask_token is None:
            raise ValueError("the checkpoint names no mask token, so nothing can be denoised")
        self.export = export
        self.cache: Tensor = np.zeros(export.cache_shape, export.dtype)
        self.committed = 0
        self.passes: list[PassKind] = []
        self._mask = export.mask_token
        self._forward = forward

    def generate(self, prompt: Sequence[int], options: LoopOptions) -> list[int]:
        """The answer, up to and with the token that ends it; it also ends where no block is left in the cache."""
        size = self.export.block
        whole = len(prompt) // size * size
        for start in range(0, whole, size):
            self.run(prompt[start : start + size], PassKind.COMMIT)
        known, answer = list(prompt[whole:]), list[int]()
        while self.committed + size <= self.export.context:
            block = self._denoise(known, options.confidence)
            for token in block[len(known) :]:
                answer.append(token)
                if token in self.export.stop_ids or len(answer) == options.longest:
                    return answer
            self.run(block, PassKind.COMMIT)
            known = []
        return answer

    def run(self, tokens: Sequence[int], kind: PassKind) -> NDArray[np.float32]:
        """One pass over the active block of B tokens: its logits [B, vocab]. A commit makes the next block active."""
        export = self.export
        start = self.committed if kind is PassKind.COMMIT else None
        masks = (
            attention_mask([self.committed], export.block, export.context),
            insert_matrix([start], export.block, export.context),
            keep_mask([start], export.block, export.context),
        )
        values: tuple[Tensor, ...] = (
            np.array([tokens], np.int32),
            block_positions([self.committed], export.block),
            self.cache,
            *(for_layers(mask, export.mask_layers).astype(export.dtype) for mask in masks),
        )
        logits, self.cache = self._forward(dict(zip(INPUTS, values, strict=True)))
        self.passes.append(kind)
        if kind is PassKind.COMMIT:
            self.committed += export.block
        of_block: NDArray[np.float32] = logits[0]
        return of_block

    def _denoise(self, known: Sequence[int], confidence: float) -> list[int]:
        """The tokens of the active block; every pass settles one of them at least."""
        size = self.export.block
        block = [*known, *[self._mask] * (size - len(known))]
        places = set(range(len(known), size))
        while places:
            probabilities = _softmax(self._without_mask_token(self.run(block, PassKind.ITERATION)))
            best, surety = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
            surest = max(places, key=lambda place: float(surety[place]))
            settled = {place for place in places if place == surest or surety[place] > confidence}
            for place in settled:
                block[place] = int(best[place])
            places -= settled
        return block

    def _without_mask_token(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        allowed = logits.astype(np.float32)
        allowed[:, self._mask] = -np.inf
        return allowed


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    grown: NDArray[np.float32] = np.exp(logits - logits.max(axis=-1, keepdims=True))
    grown /= grown.sum(axis=-1, keepdims=True)
    return grown
