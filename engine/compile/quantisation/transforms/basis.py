"""In which basis a changed checkpoint has its keys and values, so that caches of two bundles can be told in one.

Legend: L = layers with keys and values, K = KV heads, D = head size.
"""

import numpy as np

from engine.compile.quantisation.transforms.rotation import Edits, Float64
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint
from engine.compile.sources.checkpoint import Checkpoint, CheckpointView
from engine.models.network import Network


def head_basis(checkpoint: Checkpoint, network: Network) -> Float64 | None:
    """[L, K, 1 + D, D]: of each head the factors of its keys, and the matrix that its values are multiplied with.

    None where nothing of either is changed. Factors of keys commute with their rotation by position.
    """
    changes = _edits(checkpoint)
    if not changes or len(network.spec.cache_groups) != 1:
        return None
    spec = network.spec
    shape = (len(spec.attention_layers), spec.kv_heads, 1 + spec.head_dim, spec.head_dim)
    found = np.zeros(shape)
    for index, layer in enumerate(spec.attention_layers):
        keys, values = _of_layer(changes, network, layer)
        for head in range(spec.kv_heads):
            own = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
            found[index, head, 0], found[index, head, 1:] = keys[own], values[own, own]
    same = np.concatenate([np.ones((1, spec.head_dim)), np.eye(spec.head_dim)])
    return None if np.array_equal(found, np.broadcast_to(same, shape)) else found


def _edits(checkpoint: Checkpoint) -> list[Edits]:
    """All changes of the checkpoint, the first one first."""
    found: list[Edits] = []
    while isinstance(checkpoint, TransformedCheckpoint | CheckpointView):
        if isinstance(checkpoint, TransformedCheckpoint):
            found.insert(0, checkpoint.edits)
        checkpoint = checkpoint.inner
    return found


def _of_layer(changes: list[Edits], network: Network, layer: int) -> tuple[Float64, Float64]:
    """Factors of keys [K * D], and what values are multiplied with [K * D, K * D]."""
    names, width = network.details.names, network.key_width
    modules = [name.format(layer=layer) for name in names.qkv]
    is_stacked = len(modules) == 1
    first_key, first_value = (network.query_width, network.query_width + width) if is_stacked else (0, 0)
    keys, values = np.eye(width), np.eye(width)
    for change in changes:
        if (edit := change.linears.get(modules[0 if is_stacked else 1])) is not None and edit.output_scale is not None:
            keys = edit.output_scale[first_key : first_key + width, None] * keys
        if (edit := change.linears.get(modules[0 if is_stacked else 2])) is not None:
            values = edit.outputs(values, first_value)
        norm = change.norms.get(names.k_norm.format(layer=layer))
        if norm is not None:
            keys = np.tile(norm, width // len(norm))[:, None] * keys
    return np.diagonal(keys).copy(), values
