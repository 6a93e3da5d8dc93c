"""The float definition of recurrent layers in numpy: gated delta rule, short convolution, Mamba2, token by token.

Shapes: T tokens, H value heads, K key size, V value size, W kernel.
"""

import numpy as np

from engine.bundle.specs import RecurrentKind, RecurrentSpec
from engine.compile.calibration.layer_reader import LayerReader, norm, sigmoid
from engine.compile.sources.checkpoint import Float32

LENGTH_EPSILON = np.float32(1e-6)


def mixed_by_recurrence(reader: LayerReader, stacked: Float32, x: Float32) -> Float32:
    """A recurrent layer from an empty state: what the output projection is given [T, H * V]. stacked [T, ...]: what the
    layer's first matrices give. x [T, hidden]: normed, what that was made of."""
    spec = reader.network.spec.recurrent
    assert spec is not None
    match spec.kind:
        case RecurrentKind.SHORT_CONV:
            first, gate, values = np.split(stacked, 3, axis=1)
            return np.asarray(_convolved(reader, first * values) * gate, np.float32)
        case RecurrentKind.MAMBA2:
            return _state_space(reader, spec, stacked)
    return _delta_rule(reader, spec, stacked, x)


def _delta_rule(reader: LayerReader, spec: RecurrentSpec, stacked: Float32, x: Float32) -> Float32:
    """Gated DeltaNet. stacked: queries, keys, values and gate."""
    names = reader.network.details.recurrent_names
    mixed, gate = np.split(stacked, [spec.channels], axis=1)
    mixed = _silu(_convolved(reader, mixed))
    query, key, value = np.split(mixed, [spec.key_width, 2 * spec.key_width], axis=1)
    query, key = (_repeated(spec, _of_unit_length(part.reshape(len(x), spec.key_heads, -1))) for part in (query, key))
    query = query / np.sqrt(np.float32(spec.key_dim))
    beta = sigmoid(reader.project(x, (names.beta,)))
    decay = _decay(reader, _step(reader, reader.project(x, (names.decay,))))
    memory = np.zeros(spec.memory_shape, np.float32)
    outputs = []
    for row, values in enumerate(value.reshape(len(x), spec.value_heads, -1)):
        memory = memory * decay[row][:, None, None]
        wrong = beta[row][:, None] * (values - np.einsum("hkv,hk->hv", memory, key[row]))
        memory = memory + key[row][:, :, None] * wrong[:, None, :]
        outputs.append(np.einsum("hkv,hk->hv", memory, query[row]))
    heads = norm(np.stack(outputs), reader.tensor(f"{names.norm}.weight"), reader.network.norm_epsilon)
    return np.asarray(heads.reshape(len(x), -1) * _silu(gate), np.float32)


def _state_space(reader: LayerReader, spec: RecurrentSpec, stacked: Float32) -> Float32:
    """Mamba2. stacked: gate, what is convolved, steps."""
    names, count = reader.network.details.recurrent_names, len(stacked)
    gate, mixed, step = np.split(stacked, [spec.value_width, spec.value_width + spec.channels], axis=1)
    mixed, bias = _convolved(reader, mixed), reader.optional(f"{names.conv}.bias")
    mixed = _silu(mixed if bias is None else mixed + bias)
    value, key, query = np.split(mixed, [spec.value_width, spec.value_width + spec.key_width], axis=1)
    query, key = (_repeated(spec, part.reshape(count, spec.key_heads, -1)) for part in (query, key))
    step = _step(reader, step)
    decay, skip = _decay(reader, step), reader.tensor(names.skip)[:, None]
    memory = np.zeros(spec.memory_shape, np.float32)
    outputs = []
    for row, values in enumerate(value.reshape(count, spec.value_heads, -1)):
        added = key[row][:, :, None] * (step[row][:, None] * values)[:, None, :]
        memory = memory * decay[row][:, None, None] + added
        outputs.append(np.einsum("hkv,hk->hv", memory, query[row]) + skip * values)
    gated = np.stack(outputs).reshape(count, -1) * _silu(gate)
    if not names.norm:
        return np.asarray(gated, np.float32)
    groups = norm(gated.reshape(count, spec.key_heads, -1), np.ones(1, np.float32), reader.network.norm_epsilon)
    return np.asarray(groups.reshape(count, -1) * reader.tensor(f"{names.norm}.weight"), np.float32)


def _convolved(reader: LayerReader, x: Float32) -> Float32:
    """x [T, channels], each channel with its own weight [channels, W] over this token and those before."""
    weight = reader.tensor(f"{reader.network.details.recurrent_names.conv}.weight")[:, 0]
    kernel = weight.shape[1]
    padded = np.concatenate([np.zeros((kernel - 1, x.shape[1]), np.float32), x])
    return np.asarray(sum(padded[tap : tap + len(x)] * weight[:, tap] for tap in range(kernel)), np.float32)


def _silu(x: Float32) -> Float32:
    return x * sigmoid(x)


def _step(reader: LayerReader, raw: Float32) -> Float32:
    """softplus(raw + dt_bias) [T, H]."""
    bias = reader.tensor(reader.network.details.recurrent_names.dt_bias)
    return np.asarray(np.logaddexp(np.float32(0), raw + bias), np.float32)


def _decay(reader: LayerReader, step: Float32) -> Float32:
    """What the state of each head is multiplied with [T, H]."""
    return np.asarray(np.exp(-np.exp(reader.tensor(reader.network.details.recurrent_names.a_log)) * step), np.float32)


def _repeated(spec: RecurrentSpec, x: Float32) -> Float32:
    """[T, key heads, K] -> [T, H, K]."""
    return np.repeat(x, spec.value_heads // spec.key_heads, axis=1)


def _of_unit_length(x: Float32) -> Float32:
    result: Float32 = x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + LENGTH_EPSILON)
    return result
