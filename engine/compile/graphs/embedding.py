"""The embedding table: how it is stored, and how a graph looks tokens up in it. One form for each number of bits."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from engine.bundle.tensors import Encoding
from engine.compile.calibration.encodings import Range, wide_encoding
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.methods.integer_blocks import int4_blocks
from engine.compile.quantisation.methods.integer_graphs import int8_outputs
from engine.compile.quantisation.methods.method import StoredMatrix
from engine.compile.quantisation.packed import PackedTable
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Float32
from engine.errors import CompileError

Dims = tuple[int, int]  # vocab, hidden

NAME = "embedding"
BLOCK = 32  # of 4-bit tables
_TYPES = {32: TensorProto.FLOAT, 16: TensorProto.FLOAT16, 8: TensorProto.INT8, 4: TensorProto.INT4}


def store_table(file: WeightFile, slices: Iterable[Float32], dims: Dims, bits: int, name: str = NAME) -> PackedTable:
    """Append a table [vocab, hidden] that comes in runs of rows. CompileError when its width has no such form."""
    if bits == 4 and dims[1] % BLOCK:
        raise CompileError(f"--embedding 4 needs a hidden size that {BLOCK} divides, it is {dims[1]}")
    scales: list[Float32] = []
    weight = file.add_chunks(name, _TYPES[bits], dims, _stored(slices, bits, scales))
    return PackedTable(
        bits, weight, file.add(f"{name}_scales", np.concatenate(scales)) if scales else None, BLOCK if bits == 4 else 0
    )


def _stored(slices: Iterable[Float32], bits: int, scales: list[Float32]) -> Iterator[NDArray[np.generic]]:
    """The numbers of each run of rows; scales of integers join `scales`, [rows, 1] or of blocks [rows, blocks]."""
    for piece in slices:
        if bits == 8:
            rows, row_scales = int8_outputs(piece)
            scales.append(row_scales[:, None])
            yield rows
        elif bits == 4:
            blocks = int4_blocks(piece, BLOCK, False)
            scales.append(blocks.scales)
            # The operator's int4 is two's complement: code - 8 is the code with its top bit turned.
            yield blocks.stored() ^ np.uint8(0x88)
        else:
            yield piece.astype(np.float16) if bits == 16 else piece


def store_integer_table(file: WeightFile, slices: Callable[[], Iterable[Float32]], dims: Dims) -> PackedTable:
    """Append a table of 16-bit codes for integer graphs; its slices are read twice, first for their range."""
    encoding = table_encoding(slices())
    weight = file.add_chunks(NAME, TensorProto.UINT16, dims, table_codes(slices(), encoding))
    scale = file.add(f"{NAME}_scale", np.array(encoding.scale, np.float32))
    zero = file.add(f"{NAME}_zero", np.array(encoding.zero_point, np.uint16))
    return PackedTable(16, weight, scale, zero_point=zero)


def table_of(matrix: StoredMatrix) -> PackedTable:
    """The table that a matrix [vocab, hidden] of blocks already is, perhaps a tied head's: the same bytes."""
    assert matrix.scales is not None
    weight = replace(matrix.weight, name=NAME, dims=(matrix.outputs, matrix.inputs * matrix.bits // 8))
    return PackedTable(matrix.bits, weight, replace(matrix.scales, name=f"{NAME}_scales"), matrix.block)


def table_encoding(slices: Iterable[Float32]) -> Encoding:
    """One 16-bit encoding for an embedding table: exactly its range, for it holds every value there will be."""
    low = high = 0.0
    for piece in slices:
        low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    return wide_encoding(Range(low, high))


def table_codes(slices: Iterable[Float32], encoding: Encoding) -> Iterator[NDArray[np.generic]]:
    """Slices [rows, width] of a table as codes of the same shape."""
    for piece in slices:
        yield encoding.encode(piece.astype(np.float64))


def embed(graph: GraphBuilder, token_ids: str, table: PackedTable) -> str:
    """token_ids [1, rows] -> [1, rows, hidden] in the activations' type."""
    if table.zero_point is not None:
        assert table.scales is not None
        codes = [graph.stored(tensor) for tensor in (table.weight, table.scales, table.zero_point)]
        real = graph.op("DequantizeLinear", codes, name=f"{table.weight.name}_real")
        return graph.op("Gather", [real, token_ids], axis=0)
    if table.block:
        assert table.scales is not None
        inputs = [graph.stored(table.weight), token_ids, graph.stored(table.scales)]
        sizes: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": table.block, "bits": table.bits}
        return graph.activations(graph.op("GatherBlockQuantized", inputs, CONTRIB, **sizes), TensorProto.FLOAT)
    rows = graph.op("Gather", [graph.stored(table.weight), token_ids], axis=0)
    rows = graph.activations(rows, table.weight.onnx_type)
    if table.scales is None:
        return rows
    scales = graph.op("Gather", [graph.stored(table.scales), token_ids], axis=0)
    return graph.op("Mul", [rows, graph.activations(scales, TensorProto.FLOAT)])
