"""The last stage: the finished bundle is run as it is served and compared with the float reference."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.compile.sources.text_files import load_tokenizer
from engine.demo.location import HELD_OUT, is_shipped, shipped_texts
from engine.errors import CompileError
from engine.runtime.interface import Runtime
from engine.runtime.opening import open_generator
from engine.runtime.reading import STEP_ROWS, read_rows, reading_shapes, text_logits
from engine.runtime.sessions import Provider, cpu_provider

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def log_softmax(logits: Float32) -> Float64:
    """Log-probabilities [T, vocab]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def divergences(expected: Float64, found: Float64) -> Float64:
    """KL(expected || found) [T] of log-probabilities."""
    result: Float64 = np.sum(np.exp(expected) * (expected - found), axis=1)
    return result


SLAB_ROWS = 8  # compared in float64 at a time: so many stay in the cache, which takes a third of the time of 64
THREADS = 2  # for each of them a slab is in memory


def all_divergences(reference: Float32, measured: Float32) -> Float64:
    """KL(reference || measured) [T] in nats, of logits [T, vocab]."""
    runs = [slice(*bounds) for bounds in slabs(len(reference), SLAB_ROWS)]
    return np.concatenate([_slab_divergences(reference[run], measured[run]) for run in runs])


def _slab_divergences(reference: Float32, measured: Float32) -> Float64:
    # Rounding may take the divergence of two equal predictions below nothing.
    return np.maximum(divergences(log_softmax(reference), log_softmax(measured)), 0.0)


def mean_divergence(reference: Float32, measured: Float32) -> float:
    """The mean of the same."""
    return float(all_divergences(reference, measured).mean())


BLOCK_TOKENS = 32  # drawn together by the bootstrap, for neighbours in a text are alike
RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and where it lies with a probability of `LEVEL`."""

    value: float
    low: float
    high: float


def draw(lengths: Sequence[int], seed: int) -> list[NDArray[np.int64]]:
    """Bootstrap samples as places of tokens: blocks of neighbours drawn with replacement, none across two windows."""
    starts = np.cumsum([0, *lengths])
    blocks = [
        np.arange(start + first, start + last)
        for start, length in zip(starts, lengths, strict=False)
        for first, last in slabs(length, BLOCK_TOKENS)
    ]
    source = np.random.default_rng(seed)
    return [
        np.concatenate([blocks[block] for block in source.integers(0, len(blocks), len(blocks))])
        for _ in range(RESAMPLES)
    ]


def interval(figure: Callable[[NDArray[np.int64]], float], count: int, draws: Sequence[NDArray[np.int64]]) -> Interval:
    """A figure of `count` tokens, and the percentiles of it over the draws."""
    found = [figure(places) for places in draws]
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(figure(np.arange(count)), float(low), float(high))


def slabs(count: int, size: int) -> Iterator[tuple[int, int]]:
    """Starts and ends of runs of `size`, the last one perhaps shorter."""
    for start in range(0, count, size):
        yield start, min(start + size, count)


MOST_TOKENS, LEAST_TOKENS = 512, 64
LARGE = 250_000_000  # parameters from which on fewer tokens are taken, so that the check takes as long

TEXT = Path(__file__).resolve().parents[1] / "texts" / "held_out.txt"


def enough_tokens(parameters: int) -> int:
    """Tokens of a check that means something: 512, of more than 2.5e8 parameters fewer, but at least 64."""
    return max(LEAST_TOKENS, min(MOST_TOKENS, MOST_TOKENS * LARGE // max(parameters, 1)))


def parity_tokens(folder: Path, vocab: int, count: int) -> list[int]:
    """Exactly `count` ids of the built-in text by the folder's tokenizer, repeated as needed; all below `vocab`."""
    ids = [token for token in load_tokenizer(folder).encode(TEXT.read_text("utf-8")).ids if token < vocab] or [0]
    return [ids[index % len(ids)] for index in range(count)]


def parity_texts(source: Path, folder: Path, vocab: int, count: int, longest: int) -> list[list[int]]:
    """About `count` ids (at least 2) in sequences of at most `longest`.

    Shipped models are asked what their training held out; any other model gets the built-in text in even pieces.
    """
    if not is_shipped(source):
        return _pieces(parity_tokens(folder, vocab, count), longest)
    texts: list[list[int]] = []
    tokenizer = load_tokenizer(folder)
    for asked in shipped_texts(HELD_OUT):
        left = count - sum(map(len, texts))
        if left < 2:
            break
        ids = tokenizer.encode(asked, add_special_tokens=False).ids
        if len(ids) <= longest:
            texts.append(ids[:left])
    return texts or _pieces(parity_tokens(folder, vocab, count), longest)


def _pieces(tokens: list[int], longest: int) -> list[list[int]]:
    """As few as hold all tokens, of nearly one length, none of a single token."""
    length = -(-len(tokens) // -(-len(tokens) // longest))
    pieces = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    return [piece for piece in pieces if len(piece) > 1] or pieces


SEED = 0  # of the confidence interval


@cache
def plain_cpu() -> Provider:
    """Runs graphs as they are written."""
    return cpu_provider(0, is_exact=True)


@dataclass(frozen=True, slots=True)
class Parity:
    """How near the graphs are to the reference over `tokens` positions.

    top1: share of positions with the same likeliest token. kl: mean KL(reference || graph) in nats.
    relative_error: largest difference over the largest reference logit. cosine: the least of a position.
    """

    tokens: int
    top1: Interval
    kl: Interval
    relative_error: float
    cosine: float


def compare_logits(reference: Float32, measured: Float32) -> Parity:
    """Both [T, vocab]; CompileError when either side, or a figure of their comparison, is no finite number."""
    if not np.isfinite(reference).all():
        raise CompileError("the checkpoint itself gives logits that are not finite: its weights are damaged")
    if not np.isfinite(measured).all():
        raise CompileError("the compiled graphs gave logits that are not finite")
    with np.errstate(all="ignore"):  # what overflows is found below
        parity = _compared(reference, measured)
    # A limit is never passed by what is no number.
    if not all(map(math.isfinite, (parity.top1.value, parity.kl.value, parity.relative_error, parity.cosine))):
        raise CompileError(f"the comparison with the checkpoint gave no finite figures: {parity}")
    return parity


def _compared(reference: Float32, measured: Float32) -> Parity:
    count = len(reference)
    pairs = [(reference[start:stop], measured[start:stop]) for start, stop in slabs(count, SLAB_ROWS)]
    with ThreadPoolExecutor(THREADS) as pool:
        figures = list(pool.map(_of_slab, pairs))
    largest = max(figure.largest for figure in figures)
    return Parity(
        tokens=count,
        top1=mean_interval(np.concatenate([figure.agrees for figure in figures])),
        kl=mean_interval(np.concatenate([figure.divergences for figure in figures])),
        relative_error=max(figure.error for figure in figures) / (largest or 1.0),
        cosine=min(figure.cosine for figure in figures),
    )


class _SlabFigures(NamedTuple):
    largest: float
    error: float
    cosine: float
    agrees: Float64  # of each position, 0 or 1
    divergences: Float64  # of each position


def _of_slab(pair: tuple[Float32, Float32]) -> _SlabFigures:
    reference, measured = pair
    agrees = reference.argmax(axis=1) == measured.argmax(axis=1)
    with np.errstate(all="ignore"):  # what overflows is found by the caller
        return _SlabFigures(
            largest=float(np.abs(reference).max()),
            error=float(np.abs(measured - reference).max()),
            cosine=float(_cosines(reference, measured).min()),
            agrees=agrees.astype(np.float64),
            divergences=_slab_divergences(reference, measured),
        )


def mean_interval(values: NDArray[np.float64]) -> Interval:
    """The mean of a figure of neighbouring tokens [T], with its interval."""
    return interval(lambda places: float(values[places].mean()), len(values), draw([len(values)], SEED))


def _cosines(reference: Float32, measured: Float32) -> NDArray[np.float64]:
    """Of each position; 1 where both are nothing."""
    products = _row_products(reference, measured)
    lengths = np.sqrt(_row_products(reference, reference) * _row_products(measured, measured))
    cosines = np.ones_like(products)
    np.divide(products, lengths, out=cosines, where=lengths > 0)
    return cosines


def _row_products(first: Float32, second: Float32) -> NDArray[np.float64]:
    """The product of each row of one with that of the other."""
    found: NDArray[np.float64] = np.einsum("ij,ij->i", first, second, dtype=np.float64)
    return found


def bundle_logits(
    folder: Path,
    manifest: Manifest,
    texts: Sequence[Sequence[int]],
    rows: int = STEP_ROWS,
    provider: Provider | None = None,
) -> Float32:
    """Logits [all tokens, vocab] of texts by the bundle's own runtime. provider: None = the CPU.

    A text takes two steps at least, so that the cache is read too; one where there is none. rows: of a step at most,
    where shapes are free.
    """
    runtime = open_generator(folder, manifest, reading_shapes(manifest, rows), provider or plain_cpu())
    read = _read_fused if runtime.shapes.slots else text_logits if manifest.reads_whole_context else _read_in_two
    try:
        return joined([read(runtime, tokens) for tokens in texts])
    finally:
        runtime.close()


def joined(pieces: Sequence[Float32]) -> Float32:
    """Rows of all pieces. A single one is not copied: logits of a large vocabulary take half a second to copy."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _read_in_two(runtime: Runtime, tokens: Sequence[int]) -> Float32:
    return text_logits(runtime, tokens, max(1, len(tokens) // 2))


def _read_fused(runtime: Runtime, tokens: Sequence[int]) -> Float32:
    """The first half token by token, and once more as a prompt, of whose chunks the last row counts; the rest upon the
    prompt's cache."""
    shapes, half = runtime.shapes, max(1, len(tokens) // 2)
    prompt, decode = max(shapes.fixed), min(shapes.fixed)
    found = text_logits(runtime, tokens[:half])
    most = prompt.rows - shapes.slots
    for first in range(0, half, most):
        chunk = tokens[first : min(first + most, half)]
        last = len(chunk) - 1
        found[first + last] = read_rows(runtime, prompt, chunk, first, [last], is_kept=True)[0]
    rest = [
        read_rows(runtime, decode, [token], place, [0], is_kept=place + 1 < len(tokens))
        for place, token in enumerate(tokens[half:], half)
    ]
    return np.concatenate([found, *rest])
