"""The float definition of the network, in numpy, straight from the checkpoint: what the graphs are checked against.

Written from the transformer's definition, layer by layer as it is read; it shares no code with the graph writer.
Shapes: T tokens, H heads, K key heads, D head_dim.
"""

import numpy as np
from numpy.typing import NDArray

from engine.compile.checkpoint import Checkpoint, Float32
from engine.models.network import Network

_HEAD_ROWS = 16_384


def reference_logits(checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64]) -> Float32:
    """Logits [T, vocab] of a causal pass over `tokens` [T] from position 0. Holds one matrix at a time."""
    names, spec = network.details.names, network.spec
    embedding = f"{names.embedding}.weight"
    x = np.concatenate([checkpoint.rows(embedding, int(token), int(token) + 1) for token in tokens])
    cos, sin = rotation_tables(network, np.arange(len(tokens)))
    for layer in range(spec.layers):
        reader = _LayerReader(checkpoint, network, layer)
        x = x + _attention(reader, _norm(x, reader.vector(names.attention_norm), network.norm_epsilon), cos, sin)
        x = x + _feed_forward(reader, _norm(x, reader.vector(names.ffn_norm), network.norm_epsilon))
    x = _norm(x, checkpoint.tensor(f"{names.final_norm}.weight", (spec.hidden,)), network.norm_epsilon)
    head = embedding if spec.tied_head else f"{names.head}.weight"
    starts = range(0, spec.vocab, _HEAD_ROWS)
    pieces = [x @ checkpoint.rows(head, start, min(start + _HEAD_ROWS, spec.vocab)).T for start in starts]
    return np.concatenate(pieces, axis=1)


def rotation_tables(network: Network, positions: NDArray[np.int64]) -> tuple[Float32, Float32]:
    """cos and sin [T, rotary_dim / 2], times the rotary factor."""
    rope = network.spec.rope
    angles = positions[:, None] * np.array(rope.inverse_frequencies)[None, :]
    return (np.cos(angles) * rope.factor).astype(np.float32), (np.sin(angles) * rope.factor).astype(np.float32)


class _LayerReader:
    """Reads one layer's tensors by the family's names."""

    def __init__(self, checkpoint: Checkpoint, network: Network, layer: int) -> None:
        self.network = network
        self._checkpoint = checkpoint
        self._layer = layer

    def vector(self, name: str) -> Float32:
        """A norm's weight."""
        full = f"{name.format(layer=self._layer)}.weight"
        return self._checkpoint.tensor(full, self._checkpoint.shape(full))

    def project(self, x: Float32, names: tuple[str, ...]) -> Float32:
        """x times each matrix, plus its bias if it has one, side by side."""
        results = []
        for name in names:
            module = name.format(layer=self._layer)
            weight = self._checkpoint.tensor(f"{module}.weight", self._checkpoint.shape(f"{module}.weight"))
            result = x @ weight.T
            if f"{module}.bias" in self._checkpoint:
                result = result + self._checkpoint.tensor(f"{module}.bias", (len(weight),))
            results.append(result)
        return np.concatenate(results, axis=1)


def _norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    scaled: Float32 = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return scaled


def _rotate(x: Float32, cos: Float32, sin: Float32) -> Float32:
    """x [heads, T, D]; the first rotary_dim of D turn, each number of the first half with its partner in the second."""
    half = cos.shape[1]
    first, second, kept = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, kept], axis=-1)


def _attention(reader: _LayerReader, x: Float32, cos: Float32, sin: Float32) -> Float32:
    network, spec, names = reader.network, reader.network.spec, reader.network.details.names
    stacked = reader.project(x, names.qkv)
    widths = np.cumsum([network.query_width, network.key_width])
    query, key, value = (
        part.reshape(len(x), -1, spec.head_dim).transpose(1, 0, 2) for part in np.split(stacked, widths, axis=1)
    )
    if network.details.has_qk_norm:
        query = _norm(query, reader.vector(names.q_norm), network.norm_epsilon)
        key = _norm(key, reader.vector(names.k_norm), network.norm_epsilon)
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    group = spec.heads // spec.kv_heads
    key, value = np.repeat(key, group, axis=0), np.repeat(value, group, axis=0)
    scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(spec.head_dim))
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ value).transpose(1, 0, 2).reshape(len(x), -1)
    return reader.project(mixed.astype(np.float32), (names.output,))


def _feed_forward(reader: _LayerReader, x: Float32) -> Float32:
    names = reader.network.details.names
    gate, up = np.split(reader.project(x, names.gate_up), 2, axis=1)
    with np.errstate(over="ignore"):
        activated = gate / (1 + np.exp(-gate))
    return reader.project(activated * up, (names.down,))
