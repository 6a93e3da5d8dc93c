"""The float definition of the network, in numpy, straight from the checkpoint: what the graphs are checked against.

Written from the transformer's definition, layer by layer as it is read; it shares no code with the graph writer.
Shapes: T tokens, H heads, K key heads, D head_dim.
"""

import numpy as np
from numpy.typing import NDArray

from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.reference_layers import LayerReader, mixed_by_recurrence, norm, sigmoid
from engine.models.network import Network

_HEAD_ROWS = 16_384


def reference_logits(
    checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64], visible: NDArray[np.bool_] | None = None
) -> Float32:
    """Logits [T, vocab] of a pass over `tokens` [T] from position 0. Holds one matrix at a time.

    visible: which tokens attention of each token sees [T, T], None = those up to itself.
    """
    spec, names = network.spec, network.details.names
    x = reference_hidden(checkpoint, network, tokens, visible)
    head = f"{names.embedding if spec.tied_head else names.head}.weight"
    starts = range(0, spec.vocab, _HEAD_ROWS)
    pieces = [x @ checkpoint.rows(head, start, min(start + _HEAD_ROWS, spec.vocab)).T for start in starts]
    return np.concatenate(pieces, axis=1)


def reference_hidden(
    checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64], visible: NDArray[np.bool_] | None = None
) -> Float32:
    """As `reference_logits`, but what the head is given: hidden states [T, hidden] behind the final norm."""
    visible = np.tri(len(tokens), dtype=np.bool_) if visible is None else visible
    names, spec = network.details.names, network.spec
    embedding = f"{names.embedding}.weight"
    x = np.concatenate([checkpoint.rows(embedding, int(token), int(token) + 1) for token in tokens])
    turn = rotation_tables(network, np.arange(len(tokens)))
    for layer in range(spec.layers):
        reader = LayerReader(checkpoint, network, layer)
        x = layer_output(reader, layer, x, turn, visible)
    final = LayerReader(checkpoint, network, spec.layers).norm_weight(names.final_norm)
    return norm(x, final, network.norm_epsilon)


def layer_output(
    reader: LayerReader, layer: int, x: Float32, turn: tuple[Float32, Float32], visible: NDArray[np.bool_]
) -> Float32:
    """The stream [T, hidden] behind a layer. turn: of `rotation_tables`. visible: as in `reference_logits`."""
    network, names = reader.network, reader.network.details.names
    normed = norm(x, reader.norm_weight(names.attention_norm), network.norm_epsilon)
    projected = reader.project(normed, mixer_names(network, layer))
    if layer in network.spec.attention_layers:
        mixed = mixed_by_attention(reader, projected, *turn, visible)
    else:
        mixed = mixed_by_recurrence(reader, projected, normed)
    x = x + reader.project(mixed, (output_name(network, layer),))
    normed = norm(x, reader.norm_weight(names.ffn_norm), network.norm_epsilon)
    return x + reader.project(gated(reader.project(normed, names.gate_up)), (names.down,))


def rotation_tables(network: Network, positions: NDArray[np.int64]) -> tuple[Float32, Float32]:
    """cos and sin [T, rotary_dim / 2], times the rotary factor."""
    rope = network.spec.rope
    angles = positions[:, None] * np.array(rope.inverse_frequencies)[None, :]
    return (np.cos(angles) * rope.factor).astype(np.float32), (np.sin(angles) * rope.factor).astype(np.float32)


def _rotate(x: Float32, cos: Float32, sin: Float32) -> Float32:
    """x [heads, T, D]; the first rotary_dim of D turn, each number of the first half with its partner in the second."""
    half = cos.shape[1]
    first, second, kept = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, kept], axis=-1)


def mixer_names(network: Network, layer: int) -> tuple[str, ...]:
    """The matrices that read the first norm of a layer, but for the steps of recurrent ones."""
    details = network.details
    return details.names.qkv if layer in network.spec.attention_layers else details.recurrent_names.qkv_gate


def output_name(network: Network, layer: int) -> str:
    """The matrix behind attention or recurrence."""
    details = network.details
    return details.names.output if layer in network.spec.attention_layers else details.recurrent_names.output


def mixed_by_attention(
    reader: LayerReader, stacked: Float32, cos: Float32, sin: Float32, visible: NDArray[np.bool_]
) -> Float32:
    """Queries, keys and values side by side [T, ...] -> what the output projection is given [T, H * D]."""
    network, spec, names = reader.network, reader.network.spec, reader.network.details.names
    queries = network.query_width * (2 if network.details.has_output_gate else 1)
    parts = np.split(stacked, np.cumsum([queries, network.key_width]), axis=1)
    gate: Float32 | None = None
    if network.details.has_output_gate:
        both = parts[0].reshape(len(stacked), spec.heads, 2, spec.head_dim)
        parts[0], gate = both[:, :, 0].reshape(len(stacked), -1), both[:, :, 1].reshape(len(stacked), -1)
    query, key, value = (part.reshape(len(stacked), -1, spec.head_dim).transpose(1, 0, 2) for part in parts)
    if network.details.has_qk_norm:
        query = norm(query, reader.norm_weight(names.q_norm), network.norm_epsilon)
        key = norm(key, reader.norm_weight(names.k_norm), network.norm_epsilon)
    query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
    group = spec.heads // spec.kv_heads
    key, value = np.repeat(key, group, axis=0), np.repeat(value, group, axis=0)
    weights = np.where(visible, query @ key.transpose(0, 2, 1), -np.inf)
    weights /= np.float32(np.sqrt(spec.head_dim))
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ value).transpose(1, 0, 2).reshape(len(stacked), -1)
    if gate is not None:
        mixed = mixed * sigmoid(gate)
    return np.asarray(mixed, np.float32)


def gated(stacked: Float32) -> Float32:
    """Gate and up side by side [T, 2 * ffn] -> what the down projection is given [T, ffn]."""
    gate, up = np.split(stacked, 2, axis=1)
    return gate * sigmoid(gate) * up
