"""What a layer with attention is made of, by the names of its tensors."""

from collections.abc import Collection

import torch
from torch import Tensor

from engine.compile.learned.supported import unsupported
from engine.compile.reference_layers import LayerReader
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
