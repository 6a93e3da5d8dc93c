"""The float definition of a recurrent layer, and what it shares with that of a layer with attention.

Written from the definition of the gated delta rule, token by token. Shapes: T tokens, H value heads, K key size,
V value size, W kernel.
"""

import numpy as np

from engine.compile.checkpoint import Checkpoint, Float32
from engine.models.network import Network

LENGTH_EPSILON = np.float32(1e-6)


class LayerReader:
    """Reads one layer's tensors by the family's names."""

    def __init__(self, checkpoint: Checkpoint, network: Network, layer: int) -> None:
        self.network = network
        self._checkpoint = checkpoint
        self._layer = layer

    def tensor(self, name: str) -> Float32:
        """A tensor by its full name."""
        full = name.format(layer=self._layer)
        return self._checkpoint.tensor(full, self._checkpoint.shape(full))

    def optional(self, name: str) -> Float32 | None:
        """A tensor by its full name, None where the checkpoint has none."""
        return self.tensor(name) if name.format(layer=self._layer) in self._checkpoint else None

    def norm_weight(self, name: str) -> Float32:
        """What a norm multiplies with."""
        return self.tensor(f"{name}.weight") + np.float32(self.network.details.norm_offset)

    def project(self, x: Float32, names: tuple[str, ...]) -> Float32:
        """x times each matrix, plus its bias if it has one, side by side."""
        results = []
        for name in names:
            module = name.format(layer=self._layer)
            weight = self.tensor(f"{module}.weight")
            result = x @ weight.T
            if f"{module}.bias" in self._checkpoint:
                result = result + self._checkpoint.tensor(f"{module}.bias", (len(weight),))
            results.append(result)
        return np.concatenate(results, axis=1)


def norm(x: Float32, weight: Float32, epsilon: float) -> Float32:
    """RMS over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    scaled: Float32 = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
    return scaled


def sigmoid(x: Float32) -> Float32:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        result: Float32 = np.float32(1) / (np.float32(1) + np.exp(-x))
    return result


def mixed_by_recurrence(reader: LayerReader, stacked: Float32, x: Float32) -> Float32:
    """Gated DeltaNet from an empty state: what the output projection is given [T, H * V].

    stacked: queries, keys, values and gate side by side [T, ...]. x [T, hidden]: normed, what they were made of.
    """
    names, spec = reader.network.details.recurrent_names, reader.network.spec.recurrent
    assert spec is not None
    mixed, gate = np.split(stacked, [spec.channels], axis=1)
    mixed = _convolved(mixed, reader.tensor(f"{names.conv}.weight")[:, 0])
    query, key, value = np.split(mixed, [spec.key_width, 2 * spec.key_width], axis=1)
    repeats = spec.value_heads // spec.key_heads
    query, key = (
        np.repeat(_of_unit_length(part.reshape(len(x), spec.key_heads, -1)), repeats, axis=1) for part in (query, key)
    )
    query = query / np.sqrt(np.float32(spec.key_dim))
    beta = sigmoid(reader.project(x, (names.beta,)))
    step = np.logaddexp(np.float32(0), reader.project(x, (names.decay,)) + reader.tensor(names.dt_bias))
    decay = np.exp(-np.exp(reader.tensor(names.a_log)) * step)
    memory = np.zeros(spec.memory_shape, np.float32)
    outputs = []
    for row, values in enumerate(value.reshape(len(x), spec.value_heads, -1)):
        memory = memory * decay[row][:, None, None]
        wrong = beta[row][:, None] * (values - np.einsum("hkv,hk->hv", memory, key[row]))
        memory = memory + key[row][:, :, None] * wrong[:, None, :]
        outputs.append(np.einsum("hkv,hk->hv", memory, query[row]))
    heads = norm(np.stack(outputs), reader.tensor(f"{names.norm}.weight"), reader.network.norm_epsilon)
    gated = heads.reshape(len(x), -1) * gate * sigmoid(gate)
    return np.asarray(gated, np.float32)


def _convolved(x: Float32, weight: Float32) -> Float32:
    """x [T, channels], each channel with its own weight [channels, W] over this token and those before, then SiLU."""
    kernel = weight.shape[1]
    padded = np.concatenate([np.zeros((kernel - 1, x.shape[1]), np.float32), x])
    summed = sum(padded[tap : tap + len(x)] * weight[:, tap] for tap in range(kernel))
    result: Float32 = np.asarray(summed * sigmoid(np.asarray(summed, np.float32)), np.float32)
    return result


def _of_unit_length(x: Float32) -> Float32:
    result: Float32 = x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + LENGTH_EPSILON)
    return result
