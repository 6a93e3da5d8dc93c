"""How near an encoder's bundle is to its float definition: several texts in one step against each of them alone.

The definition shares no code with the graph writer. T: tokens of a text.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.specs import PoolingKind
from engine.compile.calibration.attention import Kept, mixed_by_attention, rotation_of
from engine.compile.calibration.forward import looked_up
from engine.compile.calibration.forward import reference_hidden as decoder_hidden
from engine.compile.calibration.layer_reader import LayerReader, gated
from engine.compile.check.parity import parity_tokens
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.errors import CompileError
from engine.models.network import Network
from engine.runtime.encoder import EncoderRuntime, pack_texts, pooled
from engine.runtime.sessions import Provider


def reference_hidden(checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64]) -> Float32:
    """Hidden states [T, hidden] of one text, all of token type 0. Holds one matrix at a time."""
    if network.details.sees_both_ways:
        return decoder_hidden(checkpoint, network, tokens)
    encoder, names = network.encoder, network.details.names
    assert encoder is not None
    places = np.arange(len(tokens))
    parts = [(names.embedding, tokens), (encoder.token_types, places * 0)]
    if encoder.positions is not None:
        parts.append((encoder.positions, places + encoder.spec.position_offset))
    x = np.add.reduce([looked_up(checkpoint, table, [rows.tolist()])[0] for table, rows in parts])
    x = LayerReader(checkpoint, network, 0).normed(x, encoder.embedding_norm)
    turn = rotation_of(network.spec.rope if encoder.positions is None else None, places)
    visible = np.ones((len(tokens), len(tokens)), np.bool_)
    for layer in range(network.spec.layers):
        reader = LayerReader(checkpoint, network, layer)
        mixed = mixed_by_attention(reader, reader.project(x, names.qkv), turn, visible, Kept())
        x = reader.normed(x + reader.project(mixed, (names.output,)), names.attention_norm)
        inner = gated(reader.project(x, names.gate_up), encoder.activation)
        x = reader.normed(x + reader.project(inner, (names.down,)), names.ffn_norm)
    return x


Vectors = NDArray[np.float64]
SHARES = (2, 4, 8, 16)  # of the step's rows, one text each


def parity_passages(folder: Path, network: Network, count: int, rows: int) -> list[list[int]]:
    """Texts that fit one step of so many rows, about `count` tokens together, each of another length."""
    total = max(min(count, rows), len(SHARES))
    ids = parity_tokens(folder, network.spec.vocab, total)
    lengths = [max(1, min(total // share, network.compiled_context)) for share in SHARES]
    starts = np.cumsum([0, *lengths])
    texts = [ids[start : start + length] for start, length in zip(starts, lengths, strict=False)]
    return [text for text in texts if text and sum(map(len, texts)) <= rows] or [ids[:1]]


def bundle_vectors(
    folder: Path, manifest: Manifest, texts: Sequence[Sequence[int]], kind: PoolingKind, provider: Provider
) -> Vectors:
    """[texts, hidden] of one step, pooled, of any length."""
    runtime = EncoderRuntime(folder, manifest, provider)
    try:
        used = sum(map(len, texts))
        rows = next(shape.rows for shape in runtime.shapes.fixed if shape.rows >= used)
        batch = pack_texts(texts, rows)
        hidden = runtime.hidden(batch)
        return np.array([pooled(hidden[text.start : text.end], kind) for text in batch.segments], np.float64)
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
            found.append(pooled(hidden, kind))
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
