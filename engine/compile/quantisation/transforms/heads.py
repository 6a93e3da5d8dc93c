"""How large keys and values of every head become on text, and the factors that even them out; the same of channels
between the matrices of feed-forwards.

Legend: K = KV heads, D = head size, T = tokens of all texts.

Keys: a channel is divided by its reach and the query's is multiplied by as much, so every product q k stays. Channels
that rotary embedding turns into each other have one factor, with which the rotation commutes. Where heads are normed
the factors lie in the gains of both norms, so all heads share them; else in rows of both projections, by head.
Values: rows of the value projection are divided, columns of the output projection are multiplied. The factor of a
channel is the root of its size over that of the columns, with which both have the same: the least product of the two
errors, those of the caches and of the columns, when a rotation spreads a head's (Cauchy-Schwarz). Heads get one size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.compile.calibration.forward import DOWN, Mix, embedded, layer_output, mixing
from engine.compile.calibration.layer_reader import LayerReader, norm
from engine.compile.quantisation.methods.blocks import Float64
from engine.compile.quantisation.transforms.rotation import Edits, LinearEdit
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Network, QkNorm


@dataclass(frozen=True, slots=True)
class HeadStatistics:
    """Of one layer, all [K, D]. keys: the largest magnitude of a channel, of one that turns that of its pair. values:
    the root of a channel's mean square. reads: the norm of the output projection's columns that read it."""

    keys: Float32
    values: Float32
    reads: Float32


OUTLIER, QUIET = 6.0, 64.0  # times as large as its own token, and as the middle one


@dataclass(slots=True)
class StreamStatistics:
    """Of the residual stream, whichever layer it is behind. largest: magnitude of any number. beside: root mean square
    of the token that has it. quiet: of the middle token. inner: by layer, the largest magnitude of each channel that
    the last matrix of the feed-forward reads."""

    largest: float = 0.0
    beside: float = 0.0
    quiet: float = 0.0
    inner: dict[int, Float32] = field(default_factory=dict)

    @property
    def has_outliers(self) -> bool:
        """16 bits that reach the largest number leave the middle token less than ten."""
        return self.largest > OUTLIER * self.beside and self.largest > QUIET * self.quiet

    def add(self, x: Float32) -> None:
        """x [T, hidden]."""
        sizes, largest = np.sqrt(np.square(x).mean(axis=1)), np.abs(x).max(axis=1)
        if largest.max() > self.largest:
            top = int(largest.argmax())
            self.largest, self.beside, self.quiet = float(largest[top]), float(sizes[top]), float(np.median(sizes))


def head_statistics(
    checkpoint: Checkpoint, network: Network, texts: Sequence[Sequence[int]], advance: Callable[[int], None]
) -> tuple[dict[int, HeadStatistics], StreamStatistics]:
    """By layer, of those with keys and values; and of the stream behind all layers. Hidden states of all texts are in
    memory; `advance` is told of layers."""
    found: dict[int, HeadStatistics] = {}
    stream, lengths = StreamStatistics(), [len(text) for text in texts]
    x = np.concatenate(embedded(checkpoint, network, texts))
    for layer in range(network.spec.layers):
        reader = LayerReader(checkpoint, network, layer)
        mix = mixing(reader, lengths)

        def measuring(stacked: Float32, normed: Float32, reader: LayerReader = reader, mix: Mix = mix) -> Float32:
            if reader.layer in network.spec.attention_layers:
                found[reader.layer] = _measured(reader, stacked)
            return mix(stacked, normed)

        def tap(kind: str, inputs: Float32, layer: int = layer) -> None:
            if kind == DOWN:
                stream.inner[layer] = np.abs(inputs).max(axis=0)

        x = layer_output(reader, x, measuring, tap)
        stream.add(x)
        advance(1)
    return found, stream


def _measured(reader: LayerReader, stacked: Float32) -> HeadStatistics:
    """Queries, keys and values side by side [T, ...] -> figures. A rotation leaves the radius of a pair as it is. Keys
    that are normed all together or behind their rotation, or of which neighbours turn, stay as they are."""
    network, spec, names = reader.network, reader.network.spec, reader.network.details.names
    width, shape = network.key_width, (len(stacked), spec.kv_heads, spec.head_dim)
    keys, values = stacked[:, -2 * width : -width].reshape(shape), stacked[:, -width:].reshape(shape)
    if spec.rope.is_interleaved or network.details.qk_norm not in (QkNorm.NONE, QkNorm.HEADS):
        keys = np.zeros_like(keys)  # what is always 0 has a factor of 1
    elif network.details.has_qk_norm:
        keys = norm(keys, reader.norm_weight(names.k_norm), network.norm_epsilon)
    sizes = np.abs(keys)
    if (rope := spec.rope_of(reader.layer)) is not None:
        half = rope.rotary_dim // 2
        radius = np.hypot(keys[..., :half], keys[..., half : 2 * half]) * np.float32(rope.factor)
        sizes = np.concatenate([radius, radius, sizes[..., 2 * half :]], axis=-1)
    output = reader.tensor(f"{names.output}.weight")
    groups = np.square(output).sum(axis=0).reshape(spec.kv_heads, -1, spec.head_dim)
    return HeadStatistics(sizes.max(axis=0), np.sqrt(np.square(values).mean(axis=0)), np.sqrt(groups.sum(axis=1)))


LARGEST = 256.0  # factor over the middle one of its layer: text may show little of a channel


def balancing_edits(network: Network, statistics: Mapping[int, HeadStatistics]) -> Edits:
    """What balancing does to each norm and projection; the function stays as it is."""
    norms: dict[str, Float64 | None] = {}
    linears: dict[str, LinearEdit] = {}
    names, details = network.details.names, network.details
    group = network.spec.heads // network.spec.kv_heads  # query heads, which have the factors of the key head they read
    for layer, seen in statistics.items():
        keys, values = key_factors(seen, details.has_qk_norm), value_factors(seen)
        if details.qk_norm is QkNorm.HEADS:
            norms[names.q_norm.format(layer=layer)] = keys[0]
            norms[names.k_norm.format(layer=layer)] = 1 / keys[0]
            keys = np.ones_like(keys)
        queries = np.repeat(keys, group, axis=0)
        if details.has_output_gate:  # a gate behind each query stays as it is
            queries = np.stack([queries, np.ones_like(queries)], axis=1)
        outputs = (queries.ravel(), 1 / keys.ravel(), 1 / values.ravel())
        modules = [name.format(layer=layer) for name in names.qkv]
        stacked = outputs if len(modules) == len(outputs) else (np.concatenate(outputs),)
        linears |= {name: LinearEdit(output_scale=scale) for name, scale in zip(modules, stacked, strict=True)}
        linears[names.output.format(layer=layer)] = LinearEdit(input_scale=np.repeat(values, group, axis=0).ravel())
    return Edits(norms, linears)


def key_factors(seen: HeadStatistics, are_shared: bool) -> Float64:
    """[K, D]: what keys are divided by. are_shared: the same for all heads."""
    reach = seen.keys.astype(np.float64)
    return _limited(np.broadcast_to(reach.max(axis=0), reach.shape) if are_shared else reach)


def value_factors(seen: HeadStatistics) -> Float64:
    """[K, D]: what values are divided by; the mean square of a layer's values stays."""
    sizes, reads = seen.values.astype(np.float64), seen.reads.astype(np.float64)
    living = (sizes > 0) & (reads > 0)
    channels = _limited(np.sqrt(np.divide(sizes, reads, out=np.zeros_like(sizes), where=living)))
    heads = np.sqrt(np.square(sizes / channels).mean(axis=1, keepdims=True))
    factors = channels * _limited(heads)
    before, after = np.square(sizes).sum(), np.square(sizes / factors).sum()
    return np.asarray(factors * np.sqrt(after / before) if before > 0 else factors, np.float64)


def _limited(factors: Float64) -> Float64:
    """Over the middle one, which becomes 1, and not too far from it; 1 for what was always 0."""
    living = factors > 0
    middle = np.median(factors[living]) if living.any() else 1.0
    return np.clip(np.where(living, factors / middle, 1.0), 1 / LARGEST, LARGEST)


# A channel that reaches so many times as far as nearly all of its layer decides alone how coarse 16 bits are for them
# (first tokens of SmolLM2: 3,200, the others 8). Finer by `SMOOTHED` in each number costs its column no more than that.
STANDS_OUT, SMOOTHED = 16.0, 4.0


def smoothing_edits(network: Network, inner: Mapping[int, Float32]) -> dict[str, LinearEdit]:
    """What becomes of the matrices around channels that stand out: rows of one are divided, columns multiplied. inner:
    as `StreamStatistics` has it. The function stays as it is (SmoothQuant, Xiao et al. 2023)."""
    names, found = network.details.names, dict[str, LinearEdit]()
    for layer, reach in inner.items():
        if reach.max() <= STANDS_OUT * np.quantile(reach, 0.99):
            continue
        factors = np.maximum(reach.astype(np.float64) * (SMOOTHED / float(reach.max())), 1.0)
        up = 1 / factors if len(names.gate_up) == 2 else np.concatenate([np.ones(len(factors)), 1 / factors])
        found[names.gate_up[-1].format(layer=layer)] = LinearEdit(output_scale=up)
        found[names.down.format(layer=layer)] = LinearEdit(input_scale=factors)
    return found
