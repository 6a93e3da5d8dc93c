"""Block diffusion over an exported graph for one prompt: prefill, iterate on the active block, commit, advance.

The cache belongs to the loop and goes through every step. Only commits write it: clean tokens, never masked ones.

What the host computes for one step of an exported graph: positions, attention mask, insert matrix, keep mask. Pure.

b sequences, blocks of B tokens, M cache columns. A sequence's cache holds its first `start` tokens, and the active
block is computed at positions start to start + B. Masks have a first axis of 1: every layer has the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.compile.graphs.block_export import EXPORT_FILE, EXPORT_VERSION, INPUTS, OUTPUTS, BlockExport
from engine.errors import BundleError
from engine.files import MANIFEST_BYTES, confined, one_line, open_regular, read_bytes, shown
from engine.runtime.sessions import ORT_TYPES, cpu_provider

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
        raise ValueError(f"a block of {block} at column {start} is outside a cache of {context} KV slots")


Tensor = NDArray[np.generic]
Forward = Callable[[dict[str, Tensor]], tuple[NDArray[np.float32], Tensor]]


class StepKind(Enum):
    """What a step does to the cache."""

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
        self.steps: list[StepKind] = []
        self._mask = export.mask_token
        self._forward = forward

    def generate(self, prompt: Sequence[int], options: LoopOptions) -> list[int]:
        """The answer, up to and with the token that ends it; it also ends where no block is left in the cache."""
        size = self.export.block
        whole = len(prompt) // size * size
        for start in range(0, whole, size):
            self.run(prompt[start : start + size], StepKind.COMMIT)
        known, answer = list(prompt[whole:]), list[int]()
        while self.committed + size <= self.export.context:
            block = self._denoise(known, options.confidence)
            for token in block[len(known) :]:
                answer.append(token)
                if token in self.export.stop_ids or len(answer) == options.longest:
                    return answer
            self.run(block, StepKind.COMMIT)
            known = []
        return answer

    def run(self, tokens: Sequence[int], kind: StepKind) -> NDArray[np.float32]:
        """One step over the active block of B tokens: its logits [B, vocab]. A commit makes the next block active."""
        export = self.export
        start = self.committed if kind is StepKind.COMMIT else None
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
        self.steps.append(kind)
        if kind is StepKind.COMMIT:
            self.committed += export.block
        of_block: NDArray[np.float32] = logits[0]
        return of_block

    def _denoise(self, known: Sequence[int], confidence: float) -> list[int]:
        """The tokens of the active block; every step settles one of them at least."""
        size = self.export.block
        block = [*known, *[self._mask] * (size - len(known))]
        places = set(range(len(known), size))
        while places:
            probabilities = _softmax(self._without_mask_token(self.run(block, StepKind.ITERATION)))
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


def load_export(folder: Path) -> BlockExport:
    """Read an exported folder's description; BundleError says what is wrong with it."""
    path = folder / EXPORT_FILE
    try:
        found = msgspec.json.decode(read_bytes(path, MANIFEST_BYTES), type=BlockExport)
    except FileNotFoundError:
        raise BundleError(f"{folder} holds no exported graph: it has no {EXPORT_FILE}") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {shown(error)}") from error
    except msgspec.DecodeError as error:
        raise BundleError(f"{path} is damaged: {one_line(error)}") from error
    if found.export_version != EXPORT_VERSION:
        raise BundleError(f"{path} has version {found.export_version}, this program reads {EXPORT_VERSION}")
    return found


class ExportedGraph:
    """A session and what it takes; calling `run` is the forward function of `BlockLoop`."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """BundleError when the graph cannot be loaded or does not take what its description says."""
        self.export = load_export(folder)
        try:
            path = confined(folder, self.export.graph)
            open_regular(path).close()  # onnxruntime would wait for the writer of a pipe
        except OSError as error:
            raise BundleError(f"graph {self.export.graph} cannot be loaded: {error}") from error
        try:
            self._session = cpu_provider(threads).open(path)
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise BundleError(f"graph {self.export.graph} cannot be loaded: {str(error)[:300]}") from error
        found = {node.name: tuple(node.shape) for node in self._session.get_inputs()}
        if found != self.export.input_shapes():
            raise BundleError(f"graph {self.export.graph} takes {found}, not what its description says")
        types = {ORT_TYPES.get(node.type) for node in self._session.get_outputs()}
        if types != {self.export.dtype}:
            raise BundleError(f"graph {self.export.graph} gives {types}, its description says {self.export.dtype}")

    def run(self, inputs: dict[str, NDArray[np.generic]]) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
        """Logits [b, B, vocab] and the updated cache."""
        logits, cache = self._session.run(list(OUTPUTS), inputs)
        return logits, cache
