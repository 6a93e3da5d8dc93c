"""One layer's tensors by the family's names, and the plainest things done with them."""

import math

import numpy as np

from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Activation, Network, NormKind

_ERF = np.frompyfunc(math.erf, 1, 1)


class LayerReader:
    """Reads one layer's tensors by the family's names. has_byte_caches: its keys and values are rounded to 8 bits."""

    def __init__(self, checkpoint: Checkpoint, network: Network, layer: int, has_byte_caches: bool = False) -> None:
        self.network = network
        self.checkpoint = checkpoint
        self.layer = layer
        self.has_byte_caches = has_byte_caches

    def tensor(self, name: str) -> Float32:
        full = name.format(layer=self.layer)
        return self.checkpoint.tensor(full, self.checkpoint.shape(full))

    def optional(self, name: str) -> Float32 | None:
        """A tensor by its full name, None where the checkpoint has none."""
        return self.tensor(name) if name.format(layer=self.layer) in self.checkpoint else None

    def norm_weight(self, name: str) -> Float32:
        return self.tensor(f"{name}.weight") + np.float32(self.network.details.norm_offset)

    def normed(self, x: Float32, name: str) -> Float32:
        """x behind a norm, with its bias if it has one; x itself where the family has no norm there."""
        if not name:
            return x
        if self.network.details.norm is NormKind.LAYER:
            x = x - x.mean(axis=-1, keepdims=True)
        found, bias = norm(x, self.norm_weight(name), self.network.norm_epsilon), self.optional(f"{name}.bias")
        return found if bias is None else found + bias

    def project(self, x: Float32, names: tuple[str, ...]) -> Float32:
        """x times each matrix, plus its bias if it has one, side by side."""
        results = []
        for name in names:
            module = name.format(layer=self.layer)
            weight = self.tensor(f"{module}.weight")
            result = x @ weight.T
            if f"{module}.bias" in self.checkpoint:
                result = result + self.checkpoint.tensor(f"{module}.bias", (len(weight),))
            results.append(result)
        return np.concatenate(results, axis=1)

    def summed(self, x: Float32, names: tuple[str, ...]) -> Float32:
        """Each part of x [T, inputs of all] times its matrix, added up."""
        widths = [self.checkpoint.shape(f"{name.format(layer=self.layer)}.weight")[1] for name in names]
        parts = np.split(x, np.cumsum(widths)[:-1], axis=1)
        products = (self.project(part, (name,)) for part, name in zip(parts, names, strict=True))
        return np.asarray(sum(products), np.float32)


def norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    scaled: Float32 = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return scaled


def sigmoid(x: Float32) -> Float32:
    with np.errstate(over="ignore"):
        result: Float32 = np.float32(1) / (np.float32(1) + np.exp(-x))
    return result


def above(gate: Float32, cutoff: float) -> Float32:
    """How far each number is above so many deviations over its row's mean, 0 below."""
    least = gate.mean(axis=-1, keepdims=True) + np.float32(cutoff) * gate.std(axis=-1, keepdims=True)
    return np.asarray(np.maximum(gate - least, np.float32(0)), np.float32)


def gated(stacked: Float32, activation: Activation = Activation.GATED_SILU) -> Float32:
    """Gate and up side by side [T, 2 * ffn], or up alone -> what the down projection is given [T, ffn]."""
    if activation.matrices == 1:
        return _activated(stacked, activation)
    gate, up = np.split(stacked, 2, axis=1)
    return _activated(gate, activation) * up


def _activated(x: Float32, activation: Activation) -> Float32:
    match activation:
        case Activation.RELU:
            return np.maximum(x, np.float32(0))
        case Activation.SQUARED_RELU:
            return np.square(np.maximum(x, np.float32(0)))
        case Activation.GATED_SILU:
            return x * sigmoid(x)
        case Activation.GELU | Activation.GATED_GELU:
            share = np.float32(1) + np.asarray(_ERF(x / math.sqrt(2)), np.float32)
        case Activation.GELU_TANH | Activation.GATED_GELU_TANH:
            share = np.float32(1) + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3))
    return np.asarray(np.float32(0.5) * x * share, np.float32)
