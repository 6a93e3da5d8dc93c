"""How large keys and values of every head become on text, by the float definition, a layer at a time.

Legend: K = KV heads, D = head size, T = tokens of all texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.reference import gated, mixed_by_attention, mixer_names, output_name, rotation_tables
from engine.compile.reference_layers import LayerReader, mixed_by_recurrence, norm
from engine.models.network import Network


@dataclass(frozen=True, slots=True)
class HeadStatistics:
    """Of one layer, all [K, D]. keys: the largest magnitude of a channel, of one that turns that of its pair.

    values: the root of a channel's mean square. reads: the norm of the output projection's columns that read it.
    """

    keys: Float32
    values: Float32
    reads: Float32


@dataclass(slots=True)
class StreamStatistics:
    """Of the residual stream, whichever layer it is behind.

    largest: magnitude of any number. beside: root mean square of the token that has it. quiet: of the middle token.
    """

    largest: float = 0.0
    beside: float = 0.0
    quiet: float = 0.0

    def add(self, x: Float32) -> None:
        """x [T, hidden]."""
        sizes, largest = np.sqrt(np.square(x).mean(axis=1)), np.abs(x).max(axis=1)
        if largest.max() > self.largest:
            top = int(largest.argmax())
            self.largest, self.beside, self.quiet = float(largest[top]), float(sizes[top]), float(np.median(sizes))


def head_statistics(
    checkpoint: Checkpoint, network: Network, texts: Sequence[Sequence[int]], advance: Callable[[int], None]
) -> tuple[dict[int, HeadStatistics], StreamStatistics]:
    """By layer, of those with keys and values; and of the stream behind all layers.

    Hidden states of all texts are in memory; `advance` is told of layers.
    """
    names, found, stream = network.details.names, {}, StreamStatistics()
    table = f"{names.embedding}.weight"
    x = np.concatenate([checkpoint.rows(table, token, token + 1) for text in texts for token in text])
    for layer in range(network.spec.layers):
        reader = LayerReader(checkpoint, network, layer)
        normed = norm(x, reader.norm_weight(names.attention_norm), network.norm_epsilon)
        stacked = reader.project(normed, mixer_names(network, layer))
        if layer in network.spec.attention_layers:
            found[layer] = _measured(reader, stacked)
        x = x + reader.project(_mixed(reader, layer, stacked, normed, texts), (output_name(network, layer),))
        normed = norm(x, reader.norm_weight(names.ffn_norm), network.norm_epsilon)
        x = x + reader.project(gated(reader.project(normed, names.gate_up)), (names.down,))
        stream.add(x)
        advance(1)
    return found, stream


def _mixed(
    reader: LayerReader, layer: int, stacked: Float32, normed: Float32, texts: Sequence[Sequence[int]]
) -> Float32:
    """What the output projection is given [T, width]: each text by itself."""
    network, pieces, start = reader.network, [], 0
    for text in texts:
        rows = slice(start, start + len(text))
        if layer in network.spec.attention_layers:
            cos, sin = rotation_tables(network, np.arange(len(text)))
            pieces.append(mixed_by_attention(reader, stacked[rows], cos, sin, np.tri(len(text), dtype=np.bool_)))
        else:
            pieces.append(mixed_by_recurrence(reader, stacked[rows], normed[rows]))
        start = rows.stop
    return np.concatenate(pieces)


def _measured(reader: LayerReader, stacked: Float32) -> HeadStatistics:
    """Queries, keys and values side by side [T, ...] -> figures. A rotation leaves the radius of a pair as it is."""
    network, spec, names = reader.network, reader.network.spec, reader.network.details.names
    width, shape = network.key_width, (len(stacked), spec.kv_heads, spec.head_dim)
    keys, values = stacked[:, -2 * width : -width].reshape(shape), stacked[:, -width:].reshape(shape)
    if network.details.has_qk_norm:
        keys = norm(keys, reader.norm_weight(names.k_norm), network.norm_epsilon)
    half, sizes = spec.rope.rotary_dim // 2, np.abs(keys)
    radius = np.hypot(keys[..., :half], keys[..., half : 2 * half]) * np.float32(spec.rope.factor)
    sizes = np.concatenate([radius, radius, sizes[..., 2 * half :]], axis=-1)
    output = reader.tensor(f"{names.output}.weight")
    groups = np.square(output).sum(axis=0).reshape(spec.kv_heads, -1, spec.head_dim)
    return HeadStatistics(sizes.max(axis=0), np.sqrt(np.square(values).mean(axis=0)), np.sqrt(groups.sum(axis=1)))
