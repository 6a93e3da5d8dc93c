"""Streams texts through the network layer by layer and chooses the codes of each matrix on the inputs it then has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.compile.calibrated.codes_file import CodesFolder
from engine.compile.calibrated.form import CodeForm, Inputs, chosen
from engine.compile.calibrated.streams import Linear, Streams
from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.reference import (
    gated,
    mixed_by_attention,
    mixer_names,
    output_name,
    rotation_tables,
)
from engine.compile.reference_layers import LayerReader, mixed_by_recurrence, norm
from engine.compile.rounding.codes import BlockCodes, BlockScales
from engine.compile.rounding.hessian import InputStatistics
from engine.models.network import Network

HEAD_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Forms:
    """How the layers are stored, and the head; None: there is nothing to choose in it."""

    layers: CodeForm
    head: CodeForm | None


class Chooser:
    """Chooses the codes of a network's matrices and writes them to `codes`; a layer is in memory at a time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: Network,
        forms: Forms,
        codes: CodesFolder,
        advance: Callable[[int], None],
    ) -> None:
        self._checkpoint = checkpoint
        self._network = network
        self._forms = forms
        self._codes = codes
        self._advance = advance

    def run(self, texts: Sequence[Sequence[int]]) -> None:
        """Over all layers and the head."""
        network = self._network
        states = self._embedded(texts)
        streams = Streams(states, states)
        for layer in range(network.spec.layers):
            streams = self._layer(layer, streams)
        if self._forms.head is not None:
            reader = LayerReader(self._checkpoint, network, network.spec.layers)
            final = reader.norm_weight(network.details.names.final_norm)
            self._head([norm(x, final, network.norm_epsilon) for x in streams.chosen], self._forms.head)

    def _embedded(self, texts: Sequence[Sequence[int]]) -> list[Float32]:
        name = f"{self._network.details.names.embedding}.weight"
        used = sorted({token for text in texts for token in text})
        rows = np.concatenate([self._checkpoint.rows(name, token, token + 1) for token in used])
        return [rows[np.searchsorted(used, np.array(text))] for text in texts]

    def _layer(self, layer: int, streams: Streams) -> Streams:
        network, names = self._network, self._network.details.names
        reader = LayerReader(self._checkpoint, network, layer)
        normed = self._normed(reader, names.attention_norm, streams)
        projected = self._linear(layer, mixer_names(network, layer), normed)
        if layer in network.spec.attention_layers:
            mixed = projected.then(normed, lambda stacked: _attended(reader, stacked))
        else:
            mixed = projected.then(normed, lambda stacked, x: mixed_by_recurrence(reader, stacked, x), normed)
        streams = self._linear(layer, (output_name(network, layer),), mixed).then(mixed, np.add, streams)
        normed = self._normed(reader, names.ffn_norm, streams)
        inner = self._linear(layer, names.gate_up, normed).then(normed, gated)
        return self._linear(layer, (names.down,), inner).then(inner, np.add, streams)

    def _normed(self, reader: LayerReader, name: str, streams: Streams) -> Streams:
        weight, epsilon = reader.norm_weight(name), self._network.norm_epsilon
        return streams.map(lambda x: norm(x, weight, epsilon))

    def _linear(self, layer: int, names: tuple[str, ...], inputs: Streams) -> Linear:
        """Choose the codes of matrices that read the same inputs."""
        modules = [name.format(layer=layer) for name in names]
        tensors = [f"{module}.weight" for module in modules]
        shapes = [self._checkpoint.shape(tensor) for tensor in tensors]
        weight = np.concatenate([self._checkpoint.tensor(*pair) for pair in zip(tensors, shapes, strict=True)])
        codes = chosen(weight, self._measured(inputs.chosen, self._forms.layers), self._forms.layers)
        start = 0
        for tensor, (outputs, *_) in zip(tensors, shapes, strict=True):
            self._codes.append(tensor, part_of(codes, start, start + outputs))
            start += outputs
        biases = [self._bias(module, outputs) for module, (outputs, *_) in zip(modules, shapes, strict=True)]
        self._advance(1)
        return Linear(weight, codes.floats(), np.concatenate(biases))

    def _measured(self, inputs: list[Float32], form: CodeForm) -> Inputs:
        statistics = InputStatistics(inputs[0].shape[1])
        for x in inputs:
            statistics.add(x)
        return Inputs.of(statistics.hessian, form.block)

    def _bias(self, module: str, outputs: int) -> Float32:
        name = f"{module}.bias"
        if name not in self._checkpoint:
            return np.zeros(outputs, np.float32)
        return self._checkpoint.tensor(name, (outputs,))

    def _head(self, states: list[Float32], form: CodeForm) -> None:
        names, spec = self._network.details.names, self._network.spec
        name = f"{names.embedding if spec.tied_head else names.head}.weight"
        inputs = self._measured(states, form)
        for start in range(0, spec.vocab, HEAD_ROWS):
            rows = self._checkpoint.rows(name, start, min(start + HEAD_ROWS, spec.vocab))
            self._codes.append(name, chosen(rows, inputs, form))
            self._advance(1)


def steps_of(network: Network, forms: Forms) -> int:
    """How often `advance` is told of one more."""
    return 4 * network.spec.layers + (-(-network.spec.vocab // HEAD_ROWS) if forms.head else 0)


def part_of(codes: BlockCodes, start: int, stop: int) -> BlockCodes:
    """Rows start..stop."""
    grid = codes.grid
    zeros = None if grid.zeros is None else grid.zeros[start:stop]
    return BlockCodes(codes.codes[start:stop], BlockScales(grid.scales[start:stop], zeros, grid.block), codes.inputs)


def _attended(reader: LayerReader, stacked: Float32) -> Float32:
    count = len(stacked)
    cos, sin = rotation_tables(reader.network, np.arange(count))
    return mixed_by_attention(reader, stacked, cos, sin, np.tri(count, dtype=np.bool_))
