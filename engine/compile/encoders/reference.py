"""The float definition of an encoder, in numpy, straight from the checkpoint: what the graphs are checked against.

It shares no code with the graph writer. Shapes: T tokens, H heads, D head_dim.
"""

import math

import numpy as np
from numpy.typing import NDArray

from engine.compile.checkpoint import Checkpoint
from engine.compile.reference_layers import LayerReader
from engine.models.encoder_details import Activation, EncoderDetails
from engine.models.network import Network

Float64 = NDArray[np.float64]
_ERF = np.frompyfunc(math.erf, 1, 1)


def reference_hidden(checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64]) -> Float64:
    """Hidden states [T, hidden] of one text, all of token type 0. Holds one matrix at a time."""
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
