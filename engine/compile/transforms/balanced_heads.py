"""Factors that even out the heads of an 8-bit cache, whose one scale the largest of a layer's channels decides.

Keys: a channel is divided by its reach and the query's is multiplied by as much, so every product q k stays. Channels
that rotary embedding turns into each other have one factor, with which the rotation commutes. Where heads are normed
the factors lie in the gains of both norms, so all heads share them; else in rows of both projections, by head.
Values: rows of the value projection are divided, columns of the output projection are multiplied. The factor of a
channel is the root of its size over that of the columns, with which both have the same: the least product of the two
errors, those of the caches and of the columns, when a rotation spreads a head's (Cauchy-Schwarz). Heads get one size.

Legend: K = KV heads, D = head size.
"""

from collections.abc import Mapping

import numpy as np

from engine.compile.transforms.edits import Edits, LinearEdit, NormEdit
from engine.compile.transforms.hadamard import Float64
from engine.compile.transforms.head_statistics import HeadStatistics
from engine.models.network import Network

LARGEST = 256.0  # factor over the middle one of its layer: text may show little of a channel


def balancing_edits(network: Network, statistics: Mapping[int, HeadStatistics]) -> Edits:
    """What balancing does to each norm and projection; the function stays as it is."""
    norms: dict[str, NormEdit] = {}
    linears: dict[str, LinearEdit] = {}
    names, details = network.details.names, network.details
    for layer, seen in statistics.items():
        keys, values = key_factors(seen, details.has_qk_norm), value_factors(seen)
        queries = np.ones_like(keys)
        if details.has_qk_norm:
            norms[names.q_norm.format(layer=layer)] = NormEdit(keys[0])
            norms[names.k_norm.format(layer=layer)] = NormEdit(1 / keys[0])
            keys = np.ones_like(keys)
        else:
            queries = keys
        outputs = (_of_queries(network, queries), 1 / keys.ravel(), 1 / values.ravel())
        modules = [name.format(layer=layer) for name in names.qkv]
        stacked = outputs if len(modules) == len(outputs) else (np.concatenate(outputs),)
        linears |= {name: LinearEdit(output_scale=scale) for name, scale in zip(modules, stacked, strict=True)}
        linears[names.output.format(layer=layer)] = LinearEdit(input_scale=_grouped(network, values).ravel())
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
    living = factors[factors > 0]
    if not living.size:
        return np.ones_like(factors)
    shares = np.where(factors > 0, factors / np.median(living), 1.0)
    return np.clip(shares, 1 / LARGEST, LARGEST)


def _grouped(network: Network, factors: Float64) -> Float64:
    """[K, D] -> [heads, D]: every query head has the factors of the key head that it reads."""
    return np.repeat(factors, network.spec.heads // network.spec.kv_heads, axis=0)


def _of_queries(network: Network, factors: Float64) -> Float64:
    """Of the rows of the query projection; a gate behind each query stays as it is."""
    queries = _grouped(network, factors)
    if not network.details.has_output_gate:
        return queries.ravel()
    return np.stack([queries, np.ones_like(queries)], axis=1).ravel()
