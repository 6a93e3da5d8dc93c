"""How near an encoder's bundle is to the checkpoint: several texts in one pass against each of them alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.pooling import PoolingKind
from engine.compile.checkpoint import Checkpoint
from engine.compile.encoders.reference import reference_hidden
from engine.compile.parity_text import parity_tokens
from engine.encoders.batch import EncoderText, pack_texts
from engine.encoders.pooling import pooled
from engine.errors import CompileError
from engine.graphs.onnx_encoder import EncoderRuntime
from engine.graphs.onnx_sessions import Provider
from engine.models.network import Network

Vectors = NDArray[np.float64]
SHARES = (2, 4, 8, 16)  # of the pass's rows, one text each


def parity_passages(folder: Path, network: Network, count: int, rows: int) -> list[list[int]]:
    """Texts that fit one pass of so many rows, about `count` tokens together, each of another length."""
    total = max(min(count, rows), len(SHARES))
    ids = parity_tokens(folder, network.spec.vocab, total)
    lengths = [max(1, min(total // share, network.compiled_context)) for share in SHARES]
    starts = np.cumsum([0, *lengths])
    texts = [ids[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    return [text for text in texts if text and sum(map(len, texts)) <= rows] or [ids[:1]]


def bundle_vectors(
    folder: Path, manifest: Manifest, texts: Sequence[Sequence[int]], kind: PoolingKind, provider: Provider
) -> Vectors:
    """[texts, hidden] of one pass, pooled, of any length."""
    runtime = EncoderRuntime(folder, manifest, provider)
    try:
        used = sum(map(len, texts))
        rows = next(count for count in runtime.rows if count >= used)
        batch = pack_texts([EncoderText(tuple(text)) for text in texts], rows)
        hidden = runtime.run(batch)
        return np.array([pooled(hidden[span], kind) for span in batch.spans], np.float64)
    finally:
        runtime.close()


def reference_vectors(
    checkpoint: Checkpoint, network: Network, texts: Sequence[Sequence[int]], kind: PoolingKind
) -> Vectors:
    """The same of the checkpoint, each text alone."""
    found = []
    with np.errstate(all="ignore"):  # what overflows is refused when the vectors are compared
        for text in texts:
            hidden = reference_hidden(checkpoint, network, np.array(text))
            found.append(pooled(hidden.astype(np.float32), kind))
    return np.array(found, np.float64)


def compare_vectors(reference: Vectors, measured: Vectors) -> dict[str, float]:
    """cosine: the least of all texts; relative_error: largest difference over the largest number.

    CompileError when either side holds no finite numbers.
    """
    if not np.isfinite(reference).all():
        raise CompileError("the checkpoint itself gives vectors that are not finite: its weights are damaged")
    if not np.isfinite(measured).all():
        raise CompileError("the compiled graphs gave vectors that are not finite")
    lengths = np.linalg.norm(reference, axis=1) * np.linalg.norm(measured, axis=1)
    cosines = np.sum(reference * measured, axis=1) / np.where(lengths == 0, 1.0, lengths)
    error = np.abs(measured - reference).max() / (np.abs(reference).max() or 1.0)
    return {"cosine": round(float(cosines.min()), 9), "relative_error": float(f"{error:.3e}")}
