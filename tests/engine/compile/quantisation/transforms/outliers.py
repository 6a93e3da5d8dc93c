"""Plants outliers as large models have them, without a change of what the network computes.

Factors are powers of two, so that every product is what it was, bit for bit: whatever a quantisation then loses more
than before, it loses to the outliers. Real networks show them in the same few channels of every layer.

    channels  a norm's scale grows by `factor`, the columns that read behind it shrink: outliers of activations
    columns   the other way round by `column_factor`: outlier columns of weights
    values    rows of the value projection grow, columns of the output projection shrink: in V caches and mixed heads
    ffn       rows of the up projection grow, columns of the down projection shrink: at the input of the down projection

Channels are those behind the norms: the stream in front of them cannot be scaled by channel, as the norm's mean square
would change. A tied head keeps its weights, so the final norm keeps its scale.
"""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.transforms.rotation import Edits, Float64, LinearEdit, readers, value_module
from engine.compile.sources.checkpoint import INDEX_FILE
from engine.compile.sources.source import FolderSource, Source
from engine.models.family import read_network
from engine.models.network import Network
from tests.engine.compile.quantisation.transforms.rotated_source import TransformedSource
from tools.random_checkpoint import write_shards


@dataclass(frozen=True, slots=True)
class OutlierPlan:
    """How many channels of each kind, `values` of each key head, and by how much they stand out (powers of two)."""

    channels: int = 3
    columns: int = 3
    values: int = 1
    ffn: int = 3
    factor: float = 32.0
    column_factor: float = 8.0


def with_outliers(source: Source, network: Network, plan: OutlierPlan, seed: int) -> Source:
    """The source with outliers planted in its weights and activations; its logits stay what they are."""
    return TransformedSource(source, network, lambda named: outlier_edits(named, plan, seed), source.config)


def plant_outliers(source: Path, folder: Path, plan: OutlierPlan, seed: int = 0) -> None:
    """Write a Hugging Face folder made of another; it must be empty or new."""
    inner = FolderSource(source)
    planted = with_outliers(inner, read_network(inner.config), plan, seed)
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(".safetensors") and path.name != INDEX_FILE:
            shutil.copyfile(path, folder / path.name)
    config = {key: value for key, value in planted.config.items() if key != "dtype"} | {"torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    with planted.tensors() as checkpoint:
        names = checkpoint.unused()  # nothing has been asked for: all of them
        write_shards(folder, ((name, checkpoint.tensor(name, checkpoint.shape(name))) for name in names))


def outlier_edits(network: Network, plan: OutlierPlan, seed: int) -> Edits:
    """What planting does to each tensor."""
    names, spec = network.details.names, network.spec
    stream = _stream_scale(network, plan, seed)
    norms: dict[str, Float64 | None] = {}
    linears: dict[str, LinearEdit] = {}
    for layer in range(spec.layers):
        for norm, modules in ((names.attention_norm, readers(network, layer)), (names.ffn_norm, names.gate_up)):
            norms[norm.format(layer=layer)] = stream
            linears |= {module.format(layer=layer): LinearEdit(input_scale=1 / stream) for module in modules}
        generator = np.random.default_rng([seed, 1, layer])
        ffn = _grown(spec.ffn, generator.permutation(spec.ffn)[: plan.ffn], plan.factor)
        _scale_between(linears, _at(layer, names.gate_up[-1]), _at(layer, names.down), _behind_gate(network, ffn), ffn)
        if layer in spec.attention_layers:
            module, first = value_module(network)
            values = _value_scale(network, plan, generator)
            mixed = np.repeat(values.reshape(spec.kv_heads, -1), spec.heads // spec.kv_heads, axis=0).ravel()
            grown = np.concatenate([np.ones(first), values])
            _scale_between(linears, _at(layer, module), _at(layer, names.output), grown, mixed)
    if not spec.tied_head:
        norms[names.final_norm] = stream
        linears[names.head] = LinearEdit(input_scale=1 / stream)
    return Edits(norms, linears)


def _scale_between(linears: dict[str, LinearEdit], writer: str, reader: str, grown: Float64, read: Float64) -> None:
    """Outputs of one module grow, the inputs of the next shrink by as much."""
    linears[writer] = replace(linears.get(writer, LinearEdit()), output_scale=grown)
    linears[reader] = replace(linears.get(reader, LinearEdit()), input_scale=1 / read)


def _at(layer: int, name: str) -> str:
    return name.format(layer=layer)


def _behind_gate(network: Network, scale: Float64) -> Float64:
    """The scale of the up projection as that of the matrix that holds it, perhaps behind the gate's."""
    stacked = len(network.details.names.gate_up) == 1
    return np.concatenate([np.ones(network.spec.ffn), scale]) if stacked else scale


def _stream_scale(network: Network, plan: OutlierPlan, seed: int) -> Float64:
    """What the scale of every norm is multiplied by, [hidden]."""
    chosen = np.random.default_rng([seed, 0]).permutation(network.spec.hidden)
    scale = _grown(network.spec.hidden, chosen[: plan.channels], plan.factor)
    scale[chosen[plan.channels : plan.channels + plan.columns]] = 1 / plan.column_factor
    return scale


def _value_scale(network: Network, plan: OutlierPlan, generator: np.random.Generator) -> Float64:
    """Of the value projection, [key heads * head_dim]: each head has channels of its own."""
    size, heads = network.spec.head_dim, range(network.spec.kv_heads)
    return np.concatenate([_grown(size, generator.permutation(size)[: plan.values], plan.factor) for _ in heads])


def _grown(size: int, chosen: NDArray[np.int64], factor: float) -> Float64:
    scale = np.ones(size)
    scale[chosen] = factor
    return scale
