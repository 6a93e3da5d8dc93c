"""Channel scales: inputs that are large get finer weights, whatever share of them norms and earlier matrices hold.

A channel of inputs x divided by s, its column of weights multiplied by s: the product stays. What divides is the norm
in front, the rows of the up projection, or those of the values, and there it costs nothing: a norm is not rounded, and
a row of codes has scales of its own. With a the root mean square of a channel's inputs and c that of its column, of
rows whose outputs have one size, s = a^alpha / c^(1 - alpha), as in SmoothQuant (Xiao et al. 2023). The column is then
(a c)^alpha, so outliers that only move size between a and c change nothing. alpha is searched as in AWQ (Lin et al.
2023), but by what GPTQ loses: it makes up for large inputs itself, and wants columns more alike than rounding to
nearest does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from engine.compile.calibration.forward import DOWN, GATE_UP, OUTPUT, QKV, layer_output, mixing
from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.quantisation.choose.form import CodeForm, compensated_codes
from engine.compile.quantisation.methods.blocks import Float64
from engine.compile.quantisation.rounding.codes import InputStatistics, damping_of, in_runs, output_errors
from engine.compile.quantisation.rounding.gptq import Factor, factorised
from engine.compile.quantisation.transforms.rotation import Edits, LinearEdit, readers, value_module
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Network

SCALE_ROWS = 256  # of a matrix, that scales are tried on
ALPHAS = (0.0, 0.125, 0.25, 0.5)
MOST = 20  # the highest power of two, and the lowest is its reciprocal


class ChannelScales:
    """Finds the scales of a network on the float stream of a few texts; a layer is in memory at a time."""

    def __init__(
        self, checkpoint: Checkpoint, network: Network, form: CodeForm, tokens: int, kept: frozenset[str] = frozenset()
    ) -> None:
        """tokens: that codes will be chosen on. kept: matrices that stay what they are, and so what stands beside."""
        self._checkpoint, self._network, self._form = checkpoint, network, form
        self._tokens, self._kept = tokens, kept
        self._norms: dict[str, Float64 | None] = {}
        self._linears: dict[str, LinearEdit] = {}

    def edits(self, states: Sequence[Float32], advance: Callable[[int], None]) -> Edits:
        """What the scales do to each tensor. states: embedded texts [tokens, hidden]. advance: is told of each layer.
        The final norm stays: a head that is tied to the embedding could not follow it."""
        for layer in range(self._network.spec.layers):
            states = self._layer(layer, states)
            advance(1)
        return Edits(self._norms, self._linears)

    def _layer(self, layer: int, states: Sequence[Float32]) -> list[Float32]:
        network, names = self._network, self._network.details.names
        reader, lengths = LayerReader(self._checkpoint, network, layer), [len(x) for x in states]
        ends = np.cumsum(lengths)[:-1]

        def scale(kind: str, inputs: Float32) -> None:
            """Find the scales of the inputs that some matrices read, each kind at the place that divides them."""
            texts = np.split(inputs, ends)
            if kind == QKV and names.attention_norm:
                weight = _stacked(reader, network.mixer_names(layer))
                self._behind_norm(layer, names.attention_norm, readers(network, layer), weight, texts)
            elif kind == OUTPUT and layer in network.spec.attention_layers:
                self._values(reader, layer, texts)
            elif kind == GATE_UP and names.ffn_norm:
                self._behind_norm(layer, names.ffn_norm, names.gate_up, _stacked(reader, names.gate_up), texts)
            elif kind == DOWN:
                self._down(reader, layer, texts)

        found = layer_output(reader, np.concatenate(states), mixing(reader, lengths), scale)
        return np.split(found, ends)

    def _down(self, reader: LayerReader, layer: int, inner: Sequence[Float32]) -> None:
        """What divides is the up projection: the second of two matrices, or the second half of one."""
        names = self._network.details.names
        up_module, down_module = names.gate_up[-1].format(layer=layer), names.down.format(layer=layer)
        if self._is_kept(up_module, down_module):
            return
        scales = searched_scales(_stacked(reader, (names.down,)), inner, self._form, self._tokens)
        up = scales if len(names.gate_up) == 2 else np.concatenate([np.ones(self._network.spec.ffn), scales])
        self._between(up_module, up, down_module, scales)

    def _values(self, reader: LayerReader, layer: int, mixed: Sequence[Float32]) -> None:
        """Heads that share values share their scales."""
        spec = self._network.spec
        values, first = value_module(self._network)
        module, output = (name.format(layer=layer) for name in (values, self._network.details.names.output))
        if self._is_kept(module, output):
            return
        shares = (spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)
        scales = searched_scales(_stacked(reader, (output,)), mixed, self._form, self._tokens, shares)
        own = scales.reshape(shares)[:, 0].reshape(-1)
        self._between(module, np.concatenate([np.ones(first), own]), output, scales)

    def _behind_norm(
        self, layer: int, norm: str, names: Sequence[str], weight: Float32, inputs: Sequence[Float32]
    ) -> None:
        modules = [name.format(layer=layer) for name in names]
        if self._is_kept(*modules):
            return
        scales = searched_scales(weight, inputs, self._form, self._tokens)
        self._norms[norm.format(layer=layer)] = 1 / scales
        for module in modules:
            self._linears[module] = replace(self._linears.get(module, LinearEdit()), input_scale=scales)

    def _between(self, writer: str, written: Float64, reader: str, read: Float64) -> None:
        self._linears[writer] = replace(self._linears.get(writer, LinearEdit()), output_scale=1 / written)
        self._linears[reader] = replace(self._linears.get(reader, LinearEdit()), input_scale=read)

    def _is_kept(self, *modules: str) -> bool:
        return any(f"{module}.weight" in self._kept for module in modules)


def _stacked(reader: LayerReader, names: Sequence[str]) -> Float32:
    return np.concatenate([reader.tensor(f"{name}.weight") for name in names])


def searched_scales(
    weight: Float32, inputs: Sequence[Float32], form: CodeForm, tokens: int, shares: tuple[int, int, int] | None = None
) -> Float64:
    """[inputs] for a matrix [outputs, inputs] and texts of its inputs [.., inputs]: those of the best alpha. tokens:
    that codes will be chosen on, which decide the damping. shares: (groups, heads of a group, channels), heads of one
    group get the same scales."""
    statistics = InputStatistics(weight.shape[1])
    for run in in_runs(inputs):
        statistics.add(run)
    hessian = statistics.hessian
    sizes = np.sqrt(np.diagonal(hessian))
    # Each row is divided by the size of its outputs: one that is large only because its reader is small must not count
    # for more than the others.
    outputs = np.sqrt(np.square(weight) @ np.square(sizes).astype(np.float32) / len(sizes))[:, None]
    weight = np.asarray(weight / np.where(outputs > 0, outputs, 1), np.float32)
    columns = np.sqrt(np.square(weight, dtype=np.float64).mean(axis=0))
    if shares is not None:
        sizes, columns = (_shared(values, shares) for values in (sizes, columns))
    # None at all comes last: floats that were blocks once lie on a grid, which every scale would destroy.
    candidates = [*(balanced_scales(sizes, columns, alpha) for alpha in ALPHAS), np.ones(len(sizes))]
    # All are tried from the first: damping is a share of the mean, which outliers would decide.
    first = candidates[0]
    rows = weight[:: max(1, -(-len(weight) // SCALE_ROWS))] * first.astype(np.float32)
    hessian /= first
    hessian /= first[:, None]
    damping, single = damping_of(len(hessian), tokens), hessian.astype(np.float32)
    factor = factorised(hessian, form.block, damping=damping)
    errors = [_error(rows, single, factor, scales / first, form) for scales in candidates]
    return candidates[int(np.argmin(errors))]


def _error(weight: Float32, hessian: Float32, factor: Factor, scales: Float64, form: CodeForm) -> float:
    """Of outputs behind codes as they will be chosen, but for what refines them."""
    single = scales.astype(np.float32)
    codes = compensated_codes(weight * single, factor.divided(scales), form)
    return float(output_errors(weight, codes.floats() / single, hessian).sum())


def balanced_scales(sizes: Float64, columns: Float64, alpha: float) -> Float64:
    """[inputs]: sizes^alpha / columns^(1 - alpha), their middle at 1; 1 for a channel of no use."""
    living = (sizes > 0) & (columns > 0)
    if not living.any():
        return np.ones(len(sizes))
    logarithms = np.where(living, alpha * np.log2(np.where(living, sizes, 1)), 0)
    logarithms -= np.where(living, (1 - alpha) * np.log2(np.where(living, columns, 1)), 0)
    logarithms -= np.median(logarithms[living])
    return np.where(living, np.exp2(np.clip(logarithms, -MOST, MOST)), 1.0)


def _shared(values: Float64, shares: tuple[int, int, int]) -> Float64:
    """The root mean square over heads that share, at each of them."""
    means = np.sqrt(np.square(values.reshape(shares)).mean(axis=1, keepdims=True))
    return np.ascontiguousarray(np.broadcast_to(means, shares)).reshape(-1)
