"""How near an encoder's bundle is to its float definition: several texts in one pass against each of them alone.

The definition shares no code with the graph writer. Shapes: T tokens, H heads, D head_dim.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.specs import PoolingKind
from engine.compile.calibration.forward import reference_hidden as decoder_hidden
from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.check.parity_text import parity_tokens
from engine.compile.sources.checkpoint import Checkpoint
from engine.errors import CompileError
from engine.models.network import Activation, EncoderDetails, Network
from engine.runtime.encoder import EncoderRuntime, pack_texts, pooled
from engine.runtime.sessions import Provider

Float64 = NDArray[np.float64]
_ERF = np.frompyfunc(math.erf, 1, 1)


def reference_hidden(checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64]) -> Float64:
    """Hidden states [T, hidden] of one text, all of token type 0. Holds one matrix at a time."""
    if network.details.sees_both_ways:
        return decoder_hidden(checkpoint, network, tokens).astype(np.float64)
    encoder, names, spec = network.encoder, network.details.names, network.spec
    assert encoder is not None
    places = np.arange(len(tokens))
    x = _rows(checkpoint, names.embedding, tokens) + _rows(checkpoint, encoder.token_types, places * 0)
    if encoder.positions is not None:
        x = x + _rows(checkpoint, encoder.positions, places + encoder.spec.position_offset)
    reader = LayerReader(checkpoint, network, 0)
    x = _norm(reader, x, encoder.embedding_norm)
    for layer in range(spec.layers):
        reader = LayerReader(checkpoint, network, layer)
        x = _norm(reader, x + _attention(reader, x, places), names.attention_norm)
        x = _norm(reader, x + _feed_forward(reader, x, encoder), names.ffn_norm)
    return x


def _rows(checkpoint: Checkpoint, module: str, indices: NDArray[np.int64]) -> Float64:
    pieces = [checkpoint.rows(f"{module}.weight", int(index), int(index) + 1) for index in indices]
    return np.concatenate(pieces).astype(np.float64)


def _norm(reader: LayerReader, x: Float64, name: str) -> Float64:
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + reader.network.norm_epsilon)
    result: Float64 = centred / deviation * reader.tensor(f"{name}.weight") + reader.tensor(f"{name}.bias")
    return result


def _attention(reader: LayerReader, x: Float64, places: NDArray[np.int64]) -> Float64:
    network, spec, names = reader.network, reader.network.spec, reader.network.details.names
    parts = np.split(_project(reader, x, names.qkv), 3, axis=1)
    query, key, value = (part.reshape(len(x), spec.heads, spec.head_dim).transpose(1, 0, 2) for part in parts)
    if network.encoder is not None and network.encoder.positions is None:
        angles = places[:, None] * np.array(spec.rope.inverse_frequencies)
        query, key = _rotate(query, angles), _rotate(key, angles)
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(spec.head_dim)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return _project(reader, (weights @ value).transpose(1, 0, 2).reshape(len(x), -1), (names.output,))


def _rotate(x: Float64, angles: Float64) -> Float64:
    """x [H, T, D]: each number of the first half of a head turns with its partner in the second."""
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _feed_forward(reader: LayerReader, x: Float64, encoder: EncoderDetails) -> Float64:
    names = reader.network.details.names
    inner = _activate(_project(reader, x, names.gate_up), encoder.activation)
    return _project(reader, inner, (names.down,))


def _activate(x: Float64, activation: Activation) -> Float64:
    match activation:
        case Activation.GELU:
            result = 0.5 * x * (1 + np.asarray(_ERF(x / math.sqrt(2)), np.float64))
        case Activation.GELU_TANH:
            result = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        case Activation.RELU:
            result = np.maximum(x, 0)
        case Activation.GATED_SILU:
            gate, up = np.split(x, 2, axis=1)
            result = gate / (1 + np.exp(-gate)) * up
    return np.asarray(result)


def _project(reader: LayerReader, x: Float64, names: tuple[str, ...]) -> Float64:
    return np.asarray(reader.project(x, names), np.float64)  # type: ignore[arg-type]


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
