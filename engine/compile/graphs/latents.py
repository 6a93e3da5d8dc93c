"""Heads made of latents (MLA) as nodes: what turns comes first in queries and keys, values are filled up with zeros.

Shapes: N rows, H heads of D numbers, of which R turn; values of V. Caches hold whole heads.
"""

from engine.compile.graphs.graph_builder import ROWS
from engine.compile.graphs.layers import LayerWriter, linear, rotate_rows
from engine.compile.quantisation.packed import PackedLatents
from engine.models.latent import LatentAttention


def start_latents(layers: LayerWriter, stacked: str, packed: PackedLatents, names: tuple[str, str, str]) -> None:
    """stacked [1, N, ...]: queries or their latents, latents of keys and values, what turns of the keys.

    names: under which queries, keys and values [1, N, H * D] are given.
    """
    graph, network, latent = layers.graph, layers.network, _latent(layers)
    spec = network.spec
    widths = graph.integers(*network.qkv_outputs(0))
    query, low, turning = graph.op_many("Split", [stacked, widths], 3, axis=-1)
    if packed.query_up is not None and packed.query_norm is not None:
        query = linear(graph, _normed(layers, query, graph.parameter(packed.query_norm)), packed.query_up)
    both = linear(graph, _normed(layers, low, graph.parameter(packed.kv_norm)), packed.kv_up)
    kept, turned = _split(layers, query, latent.kept, latent.turned)
    wide = graph.reshape(turned, 1, ROWS, spec.heads * latent.turned)
    turned = graph.reshape(
        rotate_rows(graph, wide, spec.heads, latent.turned, spec.rope), *_apart(layers, latent.turned)
    )
    _join(layers, [turned, kept], names[0])
    kept, value = _split(layers, both, latent.kept, latent.value_dim)
    shared = graph.reshape(rotate_rows(graph, turning, 1, latent.turned, spec.rope), 1, ROWS, 1, latent.turned)
    shared = graph.op("Expand", [shared, graph.integers(1, 1, spec.heads, 1)])
    _join(layers, [graph.reshape(shared, *_apart(layers, latent.turned)), kept], names[1])
    missing = latent.head_dim - latent.value_dim
    value = graph.op("Pad", [value, graph.integers(0, 0, 0, 0, 0, missing)]) if missing else value
    _join(layers, [value], names[2])
    for name in names:
        graph.add_output(name, "float32", 1, ROWS, network.query_width)


def values_alone(layers: LayerWriter, attended: str, rows: str) -> str:
    """[1, N, H * D] -> [1, N, H * V]: without what values were filled up with."""
    graph, latent, heads = layers.graph, _latent(layers), layers.network.spec.heads
    if latent.value_dim == latent.head_dim:
        return attended
    apart = graph.reshape(attended, 1, f"{rows}*{heads}", latent.head_dim)
    places = [graph.integers(number) for number in (0, latent.value_dim, -1)]
    return graph.reshape(graph.op("Slice", [apart, *places]), 1, rows, heads * latent.value_dim)


def _latent(layers: LayerWriter) -> LatentAttention:
    latent = layers.network.details.latent
    assert latent is not None
    return latent


def _normed(layers: LayerWriter, x: str, weight: str) -> str:
    return layers.lowering.norm(layers.graph, x, weight, _latent(layers).epsilon)


def _apart(layers: LayerWriter, size: int) -> tuple[int, str, int]:
    """Each head of each row by itself."""
    return 1, f"{ROWS}*{layers.network.spec.heads}", size


def _split(layers: LayerWriter, x: str, first: int, second: int) -> tuple[str, str]:
    """[1, N, H * (first + second)] -> two parts of each head."""
    graph = layers.graph
    apart = graph.reshape(x, *_apart(layers, first + second))
    parts = graph.op_many("Split", [apart, graph.integers(first, second)], 2, axis=-1)
    return parts[0], parts[1]


def _join(layers: LayerWriter, parts: list[str], name: str) -> None:
    graph = layers.graph
    joined = graph.op("Concat", parts, axis=-1) if len(parts) > 1 else parts[0]
    graph.reshape(joined, 1, ROWS, layers.network.query_width, name=name)
