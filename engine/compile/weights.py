"""From checkpoint tensors to packed parts: one matrix in memory at a time, tables and heads in slices."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments
from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.embedding import store_integer_table, store_table
from engine.compile.packed import PackedLayer, PackedLinear, PackedPart, PackedRecurrence, PackedTable
from engine.compile.parts import PartPlan
from engine.compile.quantization.blocks import Blocks
from engine.compile.quantization.method import Activations, FloatMatrix, Method
from engine.compile.quantization.table import UNROUNDED, embedding_bits, head_method, method_of
from engine.compile.weight_file import StoredTensor, WeightFile
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


@dataclass(frozen=True, slots=True)
class _Mixer:
    """What differs between a layer with attention and a recurrent one."""

    qkv: LinearSource
    output: LinearSource
    q_norm: StoredTensor | None = None
    k_norm: StoredTensor | None = None
    recurrence: PackedRecurrence | None = None


class WeightPacker:
    """Writes the weights of parts. `on_read` is told the stored bytes of every tensor read."""

    def __init__(
        self, checkpoint: Checkpoint, network: Network, arguments: CompileArguments, on_read: Callable[[int], None]
    ) -> None:
        self._checkpoint = checkpoint
        self._network = network
        self._arguments = arguments
        self._on_read = on_read

    def pack(self, part: PartPlan, file: WeightFile, small: WeightFile) -> PackedPart:
        """Write the matrices of a part into its file; its table, norms and biases into `small`, perhaps the same."""
        names, spec = self._network.details.names, self._network.spec
        table = self._table(small) if part.has_table else None
        layers = tuple(self._layer(file, small, layer) for layer in part.layers)
        if not part.has_head:
            return PackedPart(table, layers, None, None)
        final_norm = small.add("final_norm", self._norm(names.final_norm, spec.hidden))
        head = None if self._arguments.task is ModelTask.EMBED else self._head(file)
        return PackedPart(table, layers, final_norm, head)

    def _layer(self, file: WeightFile, small: WeightFile, layer: int) -> PackedLayer:
        details, spec = self._network.details, self._network.spec
        names, at = details.names, f"layer_{layer}"
        is_recurrent = layer not in spec.attention_layers
        mixer = self._recurrence(small, layer) if is_recurrent else self._attention(small, layer)
        gate_up = LinearSource(
            tuple(name.format(layer=layer) for name in names.gate_up),
            (spec.ffn, spec.ffn),
            spec.hidden,
            details.ffn_bias,
        )
        down = LinearSource((names.down.format(layer=layer),), (spec.hidden,), spec.ffn, details.ffn_bias)
        return PackedLayer(
            small.add(f"{at}_attention_norm", self._norm(names.attention_norm.format(layer=layer), spec.hidden)),
            self._linear(file, small, f"{at}_qkv", mixer.qkv),
            mixer.q_norm,
            mixer.k_norm,
            self._linear(file, small, f"{at}_output", mixer.output),
            small.add(f"{at}_ffn_norm", self._norm(names.ffn_norm.format(layer=layer), spec.hidden)),
            self._linear(file, small, f"{at}_gate_up", gate_up),
            self._linear(file, small, f"{at}_down", down),
            mixer.recurrence,
        )

    def _attention(self, small: WeightFile, layer: int) -> _Mixer:
        details, spec, width = self._network.details, self._network.spec, self._network.query_width
        names, at = details.names, f"layer_{layer}"
        scale = 1.0 / math.sqrt(spec.head_dim)
        q_norm = k_norm = None
        # The attention scale costs nothing where a weight can carry it: the query norm, else the query matrix.
        if details.has_qk_norm:
            scaled = self._norm(names.q_norm.format(layer=layer), spec.head_dim) * np.float32(scale)
            q_norm = small.add(f"{at}_q_norm", scaled)
            k_norm = small.add(f"{at}_k_norm", self._norm(names.k_norm.format(layer=layer), spec.head_dim))
        queries = width * (2 if details.has_output_gate else 1)
        qkv = LinearSource(
            tuple(name.format(layer=layer) for name in names.qkv),
            (queries, self._network.key_width, self._network.key_width),
            spec.hidden,
            details.qkv_bias,
            0 if details.has_qk_norm else width,
            scale,
        )
        output = LinearSource((names.output.format(layer=layer),), (spec.hidden,), width, details.output_bias)
        return _Mixer(qkv, output, q_norm, k_norm)

    def _recurrence(self, small: WeightFile, layer: int) -> _Mixer:
        spec, names, at = self._network.spec, self._network.details.recurrent_names, f"layer_{layer}"
        recurrent = spec.recurrent
        assert recurrent is not None
        heads = recurrent.value_heads
        steps = LinearSource(
            (names.beta.format(layer=layer), names.decay.format(layer=layer)), (heads, heads), spec.hidden
        )
        # A decay is an exponential, and these are few: they are never rounded.
        stored = self._store(small, f"{at}_steps", steps, UNROUNDED, None)
        rate = -np.exp(self._vector(names.a_log.format(layer=layer), heads))
        dt_bias = self._vector(names.dt_bias.format(layer=layer), heads)
        norm = self._vector(f"{names.norm.format(layer=layer)}.weight", recurrent.value_dim)
        recurrence = PackedRecurrence(
            stored,
            small.add(f"{at}_rate", rate),
            small.add(f"{at}_dt_bias", dt_bias),
            small.add(f"{at}_recurrent_norm", norm),
        )
        qkv = LinearSource(
            tuple(name.format(layer=layer) for name in names.qkv_gate),
            (recurrent.channels, recurrent.value_width),
            spec.hidden,
        )
        output = LinearSource((names.output.format(layer=layer),), (spec.hidden,), recurrent.value_width)
        return _Mixer(qkv, output, recurrence=recurrence)

    def _norm(self, module: str, size: int) -> Float32:
        return self._vector(f"{module}.weight", size) + np.float32(self._network.details.norm_offset)

    def _vector(self, name: str, size: int) -> Float32:
        self._on_read(self._checkpoint.stored_bytes(name))
        return self._checkpoint.tensor(name, (size,))

    def _linear(self, file: WeightFile, small: WeightFile, name: str, source: LinearSource) -> PackedLinear:
        bias = small.add(f"{name}_bias", self._bias(source)) if source.has_bias else None
        return self._store(file, name, source, method_of(self._arguments), bias)

    def _head(self, file: WeightFile) -> PackedLinear:
        names, spec = self._network.details.names, self._network.spec
        source = LinearSource((names.embedding if spec.tied_head else names.head,), (spec.vocab,), spec.hidden)
        return self._store(file, "head", source, head_method(self._arguments), None)

    def _store(
        self, file: WeightFile, name: str, source: LinearSource, method: Method, bias: StoredTensor | None
    ) -> PackedLinear:
        is_four_bit = all(self._checkpoint.is_four_bit(f"{each}.weight") for each in source.names)
        runs = self._slices(source), self._runs(source, self._kept)
        matrix = FloatMatrix(name, sum(source.outputs), source.inputs, *runs, is_four_bit)
        return PackedLinear(method.quant, method.store(file, matrix, self._arguments), bias)

    def _table(self, file: WeightFile) -> PackedTable:
        spec = self._network.spec
        source = LinearSource((self._network.details.names.embedding,), (spec.vocab,), spec.hidden)
        dims = (spec.vocab, spec.hidden)
        if method_of(self._arguments).activations is Activations.INTEGER:
            return store_integer_table(file, lambda: self._slices(source), dims)
        return store_table(file, self._slices(source), dims, embedding_bits(self._arguments))

    def _bias(self, source: LinearSource) -> Float32:
        shapes = _stored_outputs(source)
        bias = np.concatenate(
            [self._vector(f"{name}.bias", size) for name, size in zip(source.names, shapes, strict=True)]
        )
        bias[: source.scaled_rows] *= np.float32(source.scale)
        return bias

    def _slices(self, source: LinearSource) -> Iterator[Float32]:
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


def _stored_outputs(source: LinearSource) -> tuple[int, ...]:
    """Outputs of each stored matrix: as listed, or their sum when the checkpoint stacks them already."""
    return source.outputs if len(source.names) == len(source.outputs) else (sum(source.outputs),)
