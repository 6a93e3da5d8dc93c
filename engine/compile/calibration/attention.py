"""The float definition of attention in numpy: rotations, scores, what heads mix.

Shapes: T tokens, H heads, K key heads, D head_dim.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.bundle.model_spec import HeadForm, RopeSpec
from engine.compile.calibration.layer_reader import LayerReader, norm, sigmoid
from engine.compile.quantisation.methods.blocks import Bools
from engine.compile.sources.checkpoint import Float32
from engine.models.layer_kinds import LatentAttention
from engine.models.network import QkNorm


class Kept(dict[int, tuple[Float32, Float32]]):
    """Keys and values [H, T, D] of layers, for layers that read those of others."""


Turn = Callable[[Float32], Float32]  # heads [H, T, D]


def rotation_of(rope: RopeSpec | None, positions: NDArray[np.int64]) -> Turn:
    """What turns queries and keys of tokens at those positions [T]."""
    if rope is None:
        return lambda x: x
    cos, sin = rotation_tables(rope, positions)
    return partial(_rotate_pairs if rope.is_interleaved else _rotate, cos=cos, sin=sin)


def rotation_tables(rope: RopeSpec, positions: NDArray[np.int64]) -> tuple[Float32, Float32]:
    """cos and sin [T, rotary_dim / 2], times the rotary factor."""
    angles = positions[:, None] * np.array(rope.inverse_frequencies)[None, :]
    return (np.cos(angles) * rope.factor).astype(np.float32), (np.sin(angles) * rope.factor).astype(np.float32)


def _rotate(x: Float32, cos: Float32, sin: Float32) -> Float32:
    """x [heads, T, D]; the first rotary_dim of D turn, each number of the first half with its partner in the second."""
    half = cos.shape[1]
    first, second, kept = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, kept], axis=-1)


def _rotate_pairs(x: Float32, cos: Float32, sin: Float32) -> Float32:
    """As `_rotate`, but each number turns with its neighbour."""
    width = 2 * cos.shape[1]
    even, odd = x[..., 0:width:2], x[..., 1:width:2]
    turned = np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return np.concatenate([turned.reshape(*x.shape[:-1], width), x[..., width:]], axis=-1)


def mixed_by_attention(reader: LayerReader, stacked: Float32, turn: Turn, visible: Bools, kept: Kept) -> Float32:
    """Queries, keys and values side by side [T, ...] -> what the output projection is given [T, H * D]."""
    latent = reader.network.details.latent
    if latent is not None:
        return _mixed_heads(reader, *_of_latents(reader, stacked, turn, latent), visible)
    network, names, layer = reader.network, reader.network.details.names, reader.layer
    form = network.heads_of(layer)
    first, *others = np.split(stacked, np.cumsum(network.qkv_outputs(layer))[:-1], axis=1)
    gate: Float32 | None = None
    if network.details.has_output_gate:
        both = first.reshape(len(stacked), form.heads, 2, form.head_dim)
        first, gate = (both[:, :, side].reshape(len(stacked), -1) for side in (0, 1))
    if (rope := network.spec.rope_of(layer)) is not None and rope.gain:
        first = first * rope.gains(np.arange(len(first)))[:, None]
    query = _turned(reader, first, form, turn, names.q_norm)
    if others:
        value = _heads(others[-1], form)
        if network.details.has_value_norm:
            value = norm(value, np.ones(form.head_dim, np.float32), network.norm_epsilon)
        kept[layer] = _turned(reader, others[0], form, turn, names.k_norm), value
    sides = (_in_bytes(side) if reader.has_byte_caches else side for side in kept[network.spec.owner_of(layer)])
    key, value = (np.repeat(side, form.heads // form.kv_heads, axis=0) for side in sides)
    mixed = _mixed_heads(reader, query, key, value, visible)
    return mixed if gate is None else np.asarray(mixed * sigmoid(gate), np.float32)


def _in_bytes(x: Float32) -> Float32:
    """What codes of 8 bits with one scale stand for."""
    scale = np.abs(x).max() / np.float32(127)
    return np.asarray(np.rint(x / scale) * scale, np.float32) if scale > 0 else x


def _of_latents(
    reader: LayerReader, stacked: Float32, turn: Turn, latent: LatentAttention
) -> tuple[Float32, Float32, Float32]:
    """Queries and keys [H, T, D] and values [H, T, V] of what reads the stream [T, ...]."""
    count, heads = len(stacked), reader.network.spec.heads
    query, low, key = np.split(stacked, np.cumsum(reader.network.qkv_outputs(reader.layer)[:-1]), axis=1)
    if latent.query_rank:
        query = norm(query, reader.norm_weight(latent.query_norm), latent.epsilon)
        query = reader.project(query, (latent.query_up,))
    low = norm(low, reader.norm_weight(latent.kv_norm), latent.epsilon)
    both = reader.project(low, (latent.kv_up,)).reshape(count, heads, -1).transpose(1, 0, 2)
    queries = query.reshape(count, heads, -1).transpose(1, 0, 2)
    queries = np.concatenate([queries[..., : latent.kept], turn(queries[..., latent.kept :])], axis=-1)
    turned = np.broadcast_to(turn(key[None]), (heads, count, latent.turned))
    keys = np.concatenate([both[..., : latent.kept], turned], axis=-1)
    return queries, keys, both[..., latent.kept :]


def _mixed_heads(reader: LayerReader, query: Float32, key: Float32, value: Float32, visible: Bools) -> Float32:
    """Queries, keys and values [H, T, ...] -> [T, H * V]."""
    network, names = reader.network, reader.network.details.names
    scores = query @ key.transpose(0, 2, 1) * np.float32(network.attention_scale)
    weights = np.where(visible, capped(scores, network.details.attention_softcap), -np.inf)
    sinks = reader.tensor(names.sinks)[:, None, None] if names.sinks else None
    mixed = (_shares(weights, sinks) @ value).transpose(1, 0, 2)
    return np.asarray(mixed.reshape(query.shape[1], -1), np.float32)


def _heads(x: Float32, form: HeadForm) -> Float32:
    """[T, heads * D] -> [heads, T, D]."""
    return x.reshape(len(x), -1, form.head_dim).transpose(1, 0, 2)


def _turned(reader: LayerReader, x: Float32, form: HeadForm, turn: Turn, name: str) -> Float32:
    """Queries or keys [T, heads * D] as they meet in scores [heads, T, D]; name: of their norm, if there is one."""
    kind = reader.network.details.qk_norm
    if kind is QkNorm.ALL:
        x = reader.normed(x, name)
    heads = _heads(x, form)
    if kind is QkNorm.HEADS:
        heads = reader.normed(heads, name)
    heads = turn(heads)
    return reader.normed(heads, name) if kind is QkNorm.TURNED_HEADS else heads


def _shares(scores: Float32, sinks: Float32 | None) -> Float32:
    """Softmax of scores [H, T, columns] in place; sinks [H, 1, 1] take a share that nothing gets."""
    highest = scores.max(axis=-1, keepdims=True)
    highest = highest if sinks is None else np.maximum(highest, sinks)
    scores -= highest
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks - highest))
    return scores


def capped(x: Float32, cap: float) -> Float32:
    """cap * tanh(x / cap), x itself without a cap."""
    return np.asarray(np.float32(cap) * np.tanh(x / np.float32(cap)), np.float32) if cap else x
