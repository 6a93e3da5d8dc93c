"""The float definition of layers with attention, in torch: what gradients go through, and the tensors it takes.

As engine/compile/calibration/forward.py, which it is checked against, but for several texts at once. B texts, T tokens,
H heads, K key heads, D head_dim. Texts are padded behind their end: attention is causal, so padding changes nothing
before it.
"""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.compile.calibration.attention import rotation_tables
from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.quantisation.learn.learning_plan import unsupported
from engine.errors import UnsupportedModel
from engine.models.network import Network


def linear_modules(network: Network, layer: int) -> tuple[str, ...]:
    """The modules of the layer's matrices."""
    names = network.details.names
    return tuple(name.format(layer=layer) for name in (*names.qkv, names.output, *names.gate_up, names.down))


def fixed_weights(reader: LayerReader, layer: int, learned: Collection[str]) -> dict[str, Tensor]:
    """The layer's tensors but for matrices in `learned`: the scales of norms, biases and matrices that stay floats."""
    network = reader.network
    names = network.details.names
    norms = [names.attention_norm, names.ffn_norm]
    if network.details.has_qk_norm:
        norms += [names.q_norm, names.k_norm]
    modules = linear_modules(network, layer)
    wanted = [f"{name.format(layer=layer)}.weight" for name in (*norms, *modules)]
    found = {name: torch.from_numpy(reader.tensor(name)) for name in wanted if name not in learned}
    biases = {f"{module}.bias": reader.optional(f"{module}.bias") for module in modules}
    return found | {name: torch.from_numpy(bias) for name, bias in biases.items() if bias is not None}


def check_learnable(network: Network) -> None:
    """UnsupportedModel for layers that have no definition here."""
    if reason := unsupported(network):
        raise UnsupportedModel(f"--quality best {reason}")


Weights = Mapping[str, Tensor]  # by the names of the checkpoint's tensors
Rotation = tuple[Tensor, Tensor]


def rotation(network: Network, length: int) -> Rotation:
    """cos and sin [T, rotary_dim / 2] of positions from 0."""
    cos, sin = rotation_tables(network.spec.rope, np.arange(length))
    return torch.from_numpy(cos), torch.from_numpy(sin)


def layer_output(network: Network, layer: int, weights: Weights, x: Tensor, turn: Rotation) -> Tensor:
    """x [B, T, hidden] -> what the layer hands to the next [B, T, hidden]."""
    names = network.details.names
    mixed = x + _attention(network, layer, weights, normed(network, weights, x, names.attention_norm, layer), turn)
    return mixed + _feed_forward(network, layer, weights, normed(network, weights, mixed, names.ffn_norm, layer))


def head_logits(network: Network, weights: Weights, x: Tensor) -> Tensor:
    """x [..., hidden] behind the last layer -> logits [..., vocab]."""
    final = network.details.names.final_norm
    return functional.linear(normed(network, weights, x, final, 0), weights[f"{head_module(network)}.weight"])


def head_module(network: Network) -> str:
    """The module whose matrix gives the logits."""
    names = network.details.names
    return names.embedding if network.spec.tied_head else names.head


def normed(network: Network, weights: Weights, x: Tensor, module: str, layer: int) -> Tensor:
    """x [..., width] through the RMS norm of that name."""
    gain = weights[f"{module.format(layer=layer)}.weight"] + network.details.norm_offset
    return functional.rms_norm(x, gain.shape, gain, network.norm_epsilon)


def _project(weights: Weights, x: Tensor, modules: tuple[str, ...], layer: int) -> Tensor:
    named = [module.format(layer=layer) for module in modules]
    return torch.cat(
        [functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias")) for name in named], dim=-1
    )


def _attention(network: Network, layer: int, weights: Weights, x: Tensor, turn: Rotation) -> Tensor:
    spec, details = network.spec, network.details
    batch, length = x.shape[:2]
    borders = (network.query_outputs, network.query_outputs + network.key_width)
    query, key, value = torch.tensor_split(_project(weights, x, details.names.qkv, layer), borders, dim=-1)
    gate: Tensor | None = None
    if details.has_output_gate:
        query, gate = query.reshape(batch, length, spec.heads, 2, spec.head_dim).unbind(3)
    query, key, value = (part.reshape(batch, length, -1, spec.head_dim) for part in (query, key, value))
    if details.has_qk_norm:
        query = normed(network, weights, query, details.names.q_norm, layer)
        key = normed(network, weights, key, details.names.k_norm, layer)
    query, key, value = (part.transpose(1, 2) for part in (_turned(query, turn), _turned(key, turn), value))
    group = spec.heads // spec.kv_heads
    key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    if gate is not None:
        mixed = mixed * torch.sigmoid(gate)
    return _project(weights, mixed.reshape(batch, length, -1), (details.names.output,), layer)


def _turned(x: Tensor, turn: Rotation) -> Tensor:
    """x [B, T, heads, D]; the first rotary_dim of D turn, each number of the first half with one of the second."""
    cos, sin = (part[: x.shape[1], None] for part in turn)
    half = cos.shape[-1]
    first, second, kept = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, kept], dim=-1)


def _feed_forward(network: Network, layer: int, weights: Weights, x: Tensor) -> Tensor:
    names = network.details.names
    gate, up = _project(weights, x, names.gate_up, layer).chunk(2, dim=-1)
    return _project(weights, functional.silu(gate) * up, (names.down,), layer)
