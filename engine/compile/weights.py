"""From checkpoint tensors to packed parts: one matrix in memory at a time, tables and heads in slices."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import INTEGER_GRAPHS, CompileArguments, Quant
from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.packed import PackedLayer, PackedLinear, PackedPart, PackedTable
from engine.compile.parts import PartPlan
from engine.compile.qdq.weights import int4_columns, int8_outputs, pack_int4, table_codes, table_encoding
from engine.compile.quantize import Int4Blocks, int4_blocks, int8_columns, int8_rows
from engine.compile.weight_file import StoredTensor, WeightFile
from engine.errors import CompileError
from engine.models.network import Network

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


class WeightPacker:
    """Writes the weights of parts. `on_read` is told the stored bytes of every tensor read."""

    def __init__(
        self, checkpoint: Checkpoint, network: Network, arguments: CompileArguments, on_read: Callable[[int], None]
    ) -> None:
        self._checkpoint = checkpoint
        self._network = network
        self._arguments = arguments
        self._on_read = on_read

    def pack(self, part: PartPlan, file: WeightFile) -> PackedPart:
        """Write all weights of a part into its file."""
        names, spec = self._network.details.names, self._network.spec
        table = self._table(file) if part.has_table else None
        layers = tuple(self._layer(file, layer) for layer in part.layers)
        if not part.has_head:
            return PackedPart(table, layers, None, None)
        final_norm = file.add("final_norm", self._vector(f"{names.final_norm}.weight", spec.hidden))
        return PackedPart(table, layers, final_norm, self._head(file))

    def _layer(self, file: WeightFile, layer: int) -> PackedLayer:
        details, spec, width = self._network.details, self._network.spec, self._network.query_width
        names = details.names
        scale = 1.0 / math.sqrt(spec.head_dim)
        at = f"layer_{layer}"
        q_norm = k_norm = None
        # The attention scale costs nothing where a weight can carry it: the query norm, else the query matrix.
        if details.has_qk_norm:
            scaled = self._vector(f"{names.q_norm.format(layer=layer)}.weight", spec.head_dim) * np.float32(scale)
            q_norm = file.add(f"{at}_q_norm", scaled)
            k_norm = file.add(f"{at}_k_norm", self._vector(f"{names.k_norm.format(layer=layer)}.weight", spec.head_dim))
        qkv = LinearSource(
            tuple(name.format(layer=layer) for name in names.qkv),
            (width, self._network.key_width, self._network.key_width),
            spec.hidden,
            details.qkv_bias,
            0 if details.has_qk_norm else width,
            scale,
        )
        output = LinearSource((names.output.format(layer=layer),), (spec.hidden,), width, details.output_bias)
        gate_up = LinearSource(
            tuple(name.format(layer=layer) for name in names.gate_up),
            (spec.ffn, spec.ffn),
            spec.hidden,
            details.ffn_bias,
        )
        down = LinearSource((names.down.format(layer=layer),), (spec.hidden,), spec.ffn, details.ffn_bias)
        attention_norm = self._vector(f"{names.attention_norm.format(layer=layer)}.weight", spec.hidden)
        ffn_norm = self._vector(f"{names.ffn_norm.format(layer=layer)}.weight", spec.hidden)
        return PackedLayer(
            file.add(f"{at}_attention_norm", attention_norm),
            self._linear(file, f"{at}_qkv", qkv),
            q_norm,
            k_norm,
            self._linear(file, f"{at}_output", output),
            file.add(f"{at}_ffn_norm", ffn_norm),
            self._linear(file, f"{at}_gate_up", gate_up),
            self._linear(file, f"{at}_down", down),
        )

    def _vector(self, name: str, size: int) -> Float32:
        self._on_read(self._checkpoint.stored_bytes(name))
        return self._checkpoint.tensor(name, (size,))

    def _linear(self, file: WeightFile, name: str, source: LinearSource) -> PackedLinear:
        outputs = sum(source.outputs)
        bias = file.add(f"{name}_bias", self._bias(source)) if source.has_bias else None
        return self._store(file, name, self._slices(source), outputs, source.inputs, self._arguments.quant, bias)

    def _head(self, file: WeightFile) -> PackedLinear:
        names, spec = self._network.details.names, self._network.spec
        source = LinearSource((names.embedding if spec.tied_head else names.head,), (spec.vocab,), spec.hidden)
        quant = self._arguments.head_quant
        return self._store(file, "head", self._slices(source), spec.vocab, spec.hidden, quant, None)

    def _store(
        self,
        file: WeightFile,
        name: str,
        slices: Iterator[Float32],
        outputs: int,
        inputs: int,
        quant: Quant,
        bias: StoredTensor | None,
    ) -> PackedLinear:
        if quant is Quant.INT4:
            return self._store_int4(file, name, slices, outputs, inputs, bias)
        if quant in INTEGER_GRAPHS:
            block = self._arguments.block if quant is Quant.W4A16 else 0
            return _store_columns(file, name, slices, outputs, inputs, block, bias)
        # Both other forms lie input-major, so the whole matrix is assembled before it is written.
        matrix: NDArray[np.generic] = np.empty((inputs, outputs), np.float32 if quant is Quant.FP32 else np.int8)
        scales = np.empty(outputs, np.float32)
        row = 0
        for piece in slices:
            stop = row + len(piece)
            if quant is Quant.FP32:
                matrix[:, row:stop] = piece.T
            else:
                matrix[:, row:stop], scales[row:stop] = int8_columns(piece)
            row = stop
        weight = file.add(f"{name}_weight", matrix)
        stored_scales = file.add(f"{name}_scales", scales) if quant is Quant.INT8 else None
        return PackedLinear(quant, inputs, outputs, weight, stored_scales, None, bias)

    def _store_int4(
        self,
        file: WeightFile,
        name: str,
        slices: Iterator[Float32],
        outputs: int,
        inputs: int,
        bias: StoredTensor | None,
    ) -> PackedLinear:
        block, asymmetric = self._arguments.block, self._arguments.asymmetric
        scales: list[Float32] = []
        zero_points: list[NDArray[np.uint8]] = []

        def packed() -> Iterator[NDArray[np.uint8]]:
            for piece in slices:
                blocks: Int4Blocks = int4_blocks(piece, block, asymmetric)
                scales.append(blocks.scales)
                if blocks.zero_points is not None:
                    zero_points.append(blocks.zero_points)
                yield blocks.packed

        dims = (outputs, -(-inputs // block), block // 2)
        weight = file.add_chunks(f"{name}_weight", onnx.TensorProto.UINT8, dims, packed())
        stored_scales = file.add(f"{name}_scales", np.concatenate(scales))
        stored_zeros = file.add(f"{name}_zeros", np.concatenate(zero_points)) if zero_points else None
        return PackedLinear(Quant.INT4, inputs, outputs, weight, stored_scales, stored_zeros, bias, block)

    def _table(self, file: WeightFile) -> PackedTable:
        spec, bits = self._network.spec, self._arguments.table_bits
        source = LinearSource((self._network.details.names.embedding,), (spec.vocab,), spec.hidden)
        slices, dims = self._slices(source), (spec.vocab, spec.hidden)
        if self._arguments.quant in INTEGER_GRAPHS:
            encoding = table_encoding(self._slices(source))
            weight = file.add_chunks("embedding", onnx.TensorProto.UINT16, dims, table_codes(slices, encoding))
            scale = file.add("embedding_scale", np.array(encoding.scale, np.float32))
            zero = file.add("embedding_zero", np.array(encoding.zero_point, np.uint16))
            return PackedTable(16, weight, scale, zero_point=zero)
        if bits == 32:
            return PackedTable(32, file.add_chunks("embedding", onnx.TensorProto.FLOAT, dims, slices))
        if bits == 16:
            halves = (piece.astype(np.float16) for piece in slices)
            return PackedTable(16, file.add_chunks("embedding", onnx.TensorProto.FLOAT16, dims, halves))
        block = self._table_block() if bits == 4 else 0
        scales: list[Float32] = []

        def packed() -> Iterator[NDArray[np.generic]]:
            for piece in slices:
                if block:
                    blocks = int4_blocks(piece, block, False)
                    scales.append(blocks.scales)
                    # The operator's int4 is two's complement: code - 8 is the code with its top bit turned.
                    yield blocks.packed ^ np.uint8(0x88)
                else:
                    integers, row_scales = int8_rows(piece)
                    scales.append(row_scales)
                    yield integers

        kind = onnx.TensorProto.INT4 if block else onnx.TensorProto.INT8
        weight = file.add_chunks("embedding", kind, dims, packed())
        return PackedTable(bits, weight, file.add("embedding_scales", np.concatenate(scales)), block)

    def _table_block(self) -> int:
        if self._network.spec.hidden % 32:
            raise CompileError(f"--embedding 4 needs a hidden size that 32 divides, it is {self._network.spec.hidden}")
        return 32

    def _bias(self, source: LinearSource) -> Float32:
        shapes = _stored_outputs(source)
        bias = np.concatenate(
            [self._vector(f"{name}.bias", size) for name, size in zip(source.names, shapes, strict=True)]
        )
        bias[: source.scaled_rows] *= np.float32(source.scale)
        return bias

    def _slices(self, source: LinearSource) -> Iterator[Float32]:
        """The stacked matrix in runs of rows, scaled; nothing is kept."""
        step = max(1, _SLICE_ITEMS // source.inputs)
        row = 0
        for name, size in zip(source.names, _stored_outputs(source), strict=True):
            tensor = f"{name}.weight"
            self._checkpoint.require(tensor, (size, source.inputs))
            row_bytes = self._checkpoint.stored_bytes(tensor) // size
            for start in range(0, size, step):
                piece = self._checkpoint.rows(tensor, start, min(start + step, size))
                scaled = min(max(source.scaled_rows - row, 0), len(piece))
                if scaled:
                    piece = piece.copy() if not piece.flags.writeable else piece
                    piece[:scaled] *= np.float32(source.scale)
                row += len(piece)
                self._on_read(row_bytes * len(piece))
                yield piece


def _store_columns(
    file: WeightFile,
    name: str,
    slices: Iterator[Float32],
    outputs: int,
    inputs: int,
    block: int,
    bias: StoredTensor | None,
) -> PackedLinear:
    """The forms of `engine.compile.qdq.weights`, input-major as MatMul wants them; block 0 = 8 bits."""
    pieces = [int4_columns(piece, block) if block else int8_outputs(piece) for piece in slices]
    integers = np.ascontiguousarray(np.concatenate([piece.integers for piece in pieces]).T)
    kind = onnx.TensorProto.INT4 if block else onnx.TensorProto.INT8
    chunk: NDArray[np.generic] = pack_int4(integers) if block else integers
    weight = file.add_chunks(f"{name}_weight", kind, (inputs, outputs), [chunk])
    scales = file.add(f"{name}_scales", np.ascontiguousarray(np.concatenate([piece.scales for piece in pieces]).T))
    return PackedLinear(Quant.W4A16 if block else Quant.W8A16, inputs, outputs, weight, scales, None, bias, block)


def _stored_outputs(source: LinearSource) -> tuple[int, ...]:
    """Outputs of each stored matrix: as listed, or their sum when the checkpoint stacks them already."""
    return source.outputs if len(source.names) == len(source.outputs) else (sum(source.outputs),)
