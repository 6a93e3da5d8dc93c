"""From checkpoint tensors to stored matrices and vectors: some rows of one matrix in memory at a time."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from engine.compile.arguments import CompileArguments
from engine.compile.graphs.embedding import store_table
from engine.compile.quantisation.methods.blocks import Blocks
from engine.compile.quantisation.methods.method import FloatMatrix, Method
from engine.compile.quantisation.methods.table import UNROUNDED, embedding_bits, method_of, wide_method
from engine.compile.quantisation.packed import PackedEnding, PackedLayerInputs, PackedLinear, PackedNorm, PackedStreams
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Network

Run = TypeVar("Run")
_SLICE_ITEMS = 1 << 21  # numbers worked on at once: small enough for the caches, large enough for numpy


@dataclass(frozen=True, slots=True)
class LinearSource:
    """Matrices [outputs, inputs] stacked along outputs. The first `scaled_rows` outputs are multiplied by `scale`."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]
    inputs: int
    has_bias: bool = False
    scaled_rows: int = 0
    scale: float = 1.0


class LinearPacker:
    """Writes single matrices and vectors. `on_read` is told the stored bytes of every tensor read.

    wide: tensors of the layers that get 8 bits where others have 4.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        network: Network,
        arguments: CompileArguments,
        on_read: Callable[[int], None],
        wide: frozenset[str] = frozenset(),
    ) -> None:
        self._wide = wide
        self._checkpoint = checkpoint
        self._network = network
        self._arguments = arguments
        self._on_read = on_read

    def norm(self, module: str, size: int) -> Float32:
        return self.vector(f"{module}.weight", size) + np.float32(self._network.details.norm_offset)

    def vector(self, name: str, size: int) -> Float32:
        self._on_read(self._checkpoint.stored_bytes(name))
        return self._checkpoint.tensor(name, (size,))

    def layer_norm(self, file: WeightFile, name: str, module: str, size: int) -> PackedNorm:
        """Write the weight and the bias of a norm."""
        weight, bias = (self.vector(f"{module}.{part}", size) for part in ("weight", "bias"))
        return PackedNorm(file.add(f"{name}_weight", weight), file.add(f"{name}_bias", bias))

    def linear(
        self, file: WeightFile, small: WeightFile, name: str, source: LinearSource, method: Method | None = None
    ) -> PackedLinear:
        """Write the matrix of a linear layer into `file`, its bias into `small`. method: None = the arguments'."""
        bias = small.add(f"{name}_bias", self._bias(source)) if source.has_bias else None
        is_wide = all(f"{each}.weight" in self._wide for each in source.names)
        method = method or (wide_method if is_wide else method_of)(self._arguments)
        return self.store(file, name, source, method, bias)

    def store(
        self, file: WeightFile, name: str, source: LinearSource, method: Method, bias: StoredTensor | None
    ) -> PackedLinear:
        """Write a matrix as the method has it; its bias is written."""
        forms = {self._checkpoint.form(f"{each}.weight") for each in source.names}
        form = forms.pop() if len(forms) == 1 else None
        kept = self._runs(source, self._kept if form else self._kept_in_order)
        matrix = FloatMatrix(name, sum(source.outputs), source.inputs, self.slices(source), kept, form)
        return PackedLinear(method, method.store(file, matrix, self._arguments), bias)

    def _bias(self, source: LinearSource) -> Float32:
        shapes = _stored_outputs(source)
        bias = np.concatenate(
            [self.vector(f"{name}.bias", size) for name, size in zip(source.names, shapes, strict=True)]
        )
        bias[: source.scaled_rows] *= np.float32(source.scale)
        return bias

    def slices(self, source: LinearSource) -> Iterator[Float32]:
        """The stacked matrix in runs of rows, scaled; nothing is kept."""
        return self._runs(source, self._floats)

    def _runs(self, source: LinearSource, read: Callable[[str, int, int, Float32], Run]) -> Iterator[Run]:
        """What `read` makes of each run of rows and the factor of each row [rows, 1]."""
        step = max(1, _SLICE_ITEMS // source.inputs)
        row = 0
        for name, size in zip(source.names, _stored_outputs(source), strict=True):
            tensor = f"{name}.weight"
            self._checkpoint.require(tensor, (size, source.inputs))
            row_bytes = self._checkpoint.stored_bytes(tensor) // size
            for start in range(0, size, step):
                stop = min(start + step, size)
                scaled = np.arange(row, row + stop - start)[:, None] < source.scaled_rows
                piece = read(tensor, start, stop, np.where(scaled, np.float32(source.scale), np.float32(1.0)))
                row += stop - start
                self._on_read(row_bytes * (stop - start))
                yield piece

    def _floats(self, tensor: str, start: int, stop: int, factors: Float32) -> Float32:
        rows = self._checkpoint.rows(tensor, start, stop)
        return rows if np.all(factors == 1) else rows * factors

    def _kept(self, tensor: str, start: int, stop: int, factors: Float32) -> Float32 | Blocks:
        """Blocks keep their codes: only scales and offsets are multiplied."""
        blocks = self._checkpoint.blocks(tensor, start, stop)
        if blocks is None:
            return self._floats(tensor, start, stop, factors)
        return blocks.scaled(factors)

    def _kept_in_order(self, tensor: str, start: int, stop: int, factors: Float32) -> Float32 | Blocks:
        """The same for a stack of several forms: blocks whose inputs stand in another order come as floats."""
        form = self._checkpoint.form(tensor)
        read = self._floats if form is None or form.order else self._kept
        return read(tensor, start, stop, factors)


def _stored_outputs(source: LinearSource) -> tuple[int, ...]:
    """Outputs of each stored matrix: as listed, or their sum when the checkpoint stacks them already."""
    return source.outputs if len(source.names) == len(source.outputs) else (sum(source.outputs),)


class StreamPacker(LinearPacker):
    """Writes what is not of attention or feed-forward."""

    def ending(self, file: WeightFile, small: WeightFile, layer: int) -> PackedEnding:
        """What stands behind the feed-forward of a layer."""
        details, hidden, at = self._network.details, self._network.spec.hidden, f"layer_{layer}"
        name = details.names.layer_scale.format(layer=layer)
        scale = small.add(f"{at}_scale", self.vector(name, 1)) if name else None
        names = details.layer_inputs
        if names is None:
            return PackedEnding(scale)
        gate = LinearSource((names.gate.format(layer=layer),), (names.size,), hidden)
        output = LinearSource((names.output.format(layer=layer),), (hidden,), names.size)
        norm = small.add(f"{at}_inputs_norm", self.norm(names.post_norm.format(layer=layer), hidden))
        stored = self.linear(file, small, f"{at}_inputs_gate", gate)
        return PackedEnding(scale, stored, self.linear(file, small, f"{at}_inputs_output", output), norm)

    def layer_inputs(self, file: WeightFile, small: WeightFile) -> PackedLayerInputs:
        """What every layer takes of tokens."""
        names, spec = self._network.details.layer_inputs, self._network.spec
        assert names is not None
        width, half = spec.layers * names.size, math.sqrt(0.5)
        table = LinearSource((names.table,), (names.vocab,), width)
        bits = embedding_bits(self._arguments)
        stored = store_table(small, self.slices(table), (names.vocab, width), bits, "layer_table")
        source = LinearSource((names.projection,), (width,), spec.hidden, False, width, spec.hidden**-0.5)
        norm = small.add("layer_inputs_norm", self.norm(names.norm, names.size) * np.float32(half))
        projection = self.linear(file, small, "layer_inputs_projection", source)
        return PackedLayerInputs(stored, names.vocab, half * math.sqrt(names.size), projection, norm)

    def streams(self, file: WeightFile, small: WeightFile, layer: int) -> PackedStreams:
        """How a layer mixes streams, and its path beside attention."""
        altup, hidden, at = self._network.details.altup, self._network.spec.hidden, f"layer_{layer}"
        assert altup is not None
        count = altup.count
        router_norm = self.norm(altup.router_norm.format(layer=layer), hidden) / np.float32(hidden)
        path_norm = self.norm(altup.path_norm.format(layer=layer), hidden)
        scale = self.vector(altup.scale.format(layer=layer), hidden)
        left = LinearSource((altup.left.format(layer=layer),), (altup.rank,), hidden)
        right = LinearSource((altup.right.format(layer=layer),), (hidden,), altup.rank)
        identity, ones = np.eye(count, dtype=np.float32).reshape(-1), np.ones(count, np.float32)
        return PackedStreams(
            small.add(f"{at}_stream_router_norm", router_norm),
            self._small(small, f"{at}_stream_router", altup.router.format(layer=layer), (count, hidden)),
            self._small(small, f"{at}_prediction", altup.prediction.format(layer=layer), (count**2, count), identity),
            self._small(small, f"{at}_correction", altup.correction.format(layer=layer), (count, count), ones),
            small.add(f"{at}_stream_scale", scale),
            self._wide_linear(file, f"{at}_path_left", left),
            self._wide_linear(file, f"{at}_path_right", right),
            small.add(f"{at}_path_norm", path_norm),
        )

    def spreading(self, file: WeightFile) -> PackedLinear:
        """What makes all streams but the first of the embedding, side by side."""
        altup, hidden = self._network.details.altup, self._network.spec.hidden
        assert altup is not None
        source = LinearSource(altup.spreading, (hidden,) * len(altup.spreading), hidden)
        return self._wide_linear(file, "spreading", source)

    def merging(self, file: WeightFile) -> tuple[PackedLinear, ...]:
        """What the last norm takes of each stream but the first."""
        altup, hidden = self._network.details.altup, self._network.spec.hidden
        sources = [LinearSource((name,), (hidden,), hidden) for name in altup.merging] if altup else []
        return tuple(self._wide_linear(file, f"merging_{index}", source) for index, source in enumerate(sources))

    def _small(
        self, small: WeightFile, name: str, module: str, shape: tuple[int, int], bias: Float32 | None = None
    ) -> PackedLinear:
        """Numbers that mix streams are few, and never rounded."""
        source = LinearSource((module,), shape[:1], shape[1])
        return self.store(small, name, source, UNROUNDED, None if bias is None else small.add(f"{name}_bias", bias))

    def _wide_linear(self, file: WeightFile, name: str, source: LinearSource) -> PackedLinear:
        """Matrices that all streams go through are small beside the others: they have 8 bits where those have 4."""
        return self.store(file, name, source, wide_method(self._arguments), None)
