"""What llama.cpp's quantised files do to a matrix [outputs, inputs], as far as their loss has to be known."""

from collections.abc import Callable

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.compile.quantisation.choose.matrices import groups_of
from engine.compile.quantisation.rounding.codes import Coding, extreme_scales, rounded
from engine.compile.sources.checkpoint import Float32
from engine.models.network import Network

Rounding = Callable[[Float32], Float32]
BLOCK, SUPER_BLOCK = 32, 256


def q4_0_of(network: Network) -> dict[str, Rounding]:
    """Every matrix of the layers as Q4_0; head and embedding have more bits there, and are left as they are."""
    groups = (group for layer in range(network.spec.layers) for group in groups_of(network, layer))
    return {name: q4_0 for group in groups for name in group.tensors}


def q4_k_m_of(network: Network) -> dict[str, Rounding]:
    """The same of Q4_K_M; values and what closes a layer have six or eight bits in half of the layers, as good as
    floats here (llama-quant.cpp, `llama_tensor_get_type`)."""
    found, layers = dict[str, Rounding](), network.spec.layers
    for layer in range(layers):
        qkv, output, gate_up, down = groups_of(network, layer)
        is_wide = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        narrow = (*(qkv.tensors[:2] if is_wide else qkv.tensors), *output.tensors, *gate_up.tensors)
        found |= dict.fromkeys((*narrow, *(() if is_wide else down.tensors)), q4_k)
    return found


def q4_0(weight: Float32) -> Float32:
    """As it is where blocks of 32 inputs do not come out even."""
    return _as(weight, GGMLQuantizationType.Q4_0)


def q4_k(weight: Float32) -> Float32:
    """Q5_0 where blocks of 256 inputs do not come out even.

    The scales of blocks are left as they are, and not searched: both lose about as much.
    """
    if weight.shape[1] % SUPER_BLOCK:
        return _as(weight, GGMLQuantizationType.Q5_0)
    return rounded(weight, extreme_scales(weight, BLOCK, Coding.OFFSET)).floats()


def _as(weight: Float32, kind: GGMLQuantizationType) -> Float32:
    if weight.shape[1] % BLOCK:
        return weight
    return np.asarray(dequantize(quantize(weight, kind), kind), np.float32)
