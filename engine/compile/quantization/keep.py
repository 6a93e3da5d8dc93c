"""keep: blocks of 32 that a file has stay what they are; everything else becomes blocks of 8 bits, hardly rounded."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.ahead import ahead
from engine.compile.arguments import CompileArguments, KvType, Quant
from engine.compile.graph_builder import GraphBuilder
from engine.compile.quantization.blocks import INT4_MIDDLE, INT8_MIDDLE, Blocks, Int4Blocks, Int8Blocks, unpack_nibbles
from engine.compile.quantization.int4 import KEPT_BLOCK, dequantised, multiply_blocks, read_floats
from engine.compile.quantization.method import Activations, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.quantization.scales import without_zeros
from engine.compile.weight_file import WeightFile

INT8_LIMIT = 127


def int8_blocks(piece: Float32 | Blocks) -> Int8Blocks:
    """Runs of rows [outputs, inputs]: floats are rounded and padded to whole blocks, codes of 4 bits only moved."""
    if isinstance(piece, Int8Blocks):
        return piece
    if isinstance(piece, Int4Blocks) and piece.offsets is not None:
        piece = dequantised(piece, piece.packed.shape[1] * KEPT_BLOCK)
    if isinstance(piece, Int4Blocks):
        codes = unpack_nibbles(piece.packed) + np.uint8(INT8_MIDDLE - INT4_MIDDLE)
        return Int8Blocks(codes, piece.scales)
    padded = np.pad(piece, ((0, 0), (0, -piece.shape[1] % KEPT_BLOCK)))
    blocks = padded.reshape(len(piece), -1, KEPT_BLOCK)
    scales = without_zeros(np.abs(blocks).max(axis=2) / np.float32(INT8_LIMIT))
    codes = np.rint(blocks / scales[:, :, None]) + np.float32(INT8_MIDDLE)
    return Int8Blocks(codes.astype(np.uint8), scales)


def _store(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """In the layout of `Int4Blocks` where all of the matrix comes so, else in that of `Int8Blocks`."""
    if matrix.is_four_bit:
        return store_kept(file, matrix, lambda piece: piece if isinstance(piece, Int4Blocks) else int8_blocks(piece), 4)
    return store_kept(file, matrix, int8_blocks, 8)


def store_kept(
    file: WeightFile, matrix: FloatMatrix, as_blocks: Callable[[Float32 | Blocks], Blocks], bits: int
) -> StoredMatrix:
    """Run by run as blocks of so many bits; what is added to each weight of a block is stored if there is any."""
    pieces = matrix.slices if matrix.kept is None else matrix.kept
    count = -(-matrix.inputs // KEPT_BLOCK)
    scales: list[Float32] = []
    offsets: list[Float32] = []

    def codes() -> Iterator[NDArray[np.uint8]]:
        for blocks in ahead(as_blocks, pieces):
            scales.append(blocks.scales)
            if isinstance(blocks, Int8Blocks):
                yield blocks.codes
            else:
                offsets.append(np.zeros_like(blocks.scales) if blocks.offsets is None else blocks.offsets)
                yield blocks.packed

    dims = (matrix.outputs, count, KEPT_BLOCK * bits // 8)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.UINT8, dims, codes())
    stored_scales = file.add(f"{matrix.name}_scales", np.concatenate(scales))
    added = np.ascontiguousarray(np.concatenate(offsets).T) if any(map(np.any, offsets)) else None
    stored_offsets = None if added is None else file.add(f"{matrix.name}_offsets", added)
    sizes = matrix.inputs, matrix.outputs
    return StoredMatrix(*sizes, weight, stored_scales, block=KEPT_BLOCK, bits=bits, offsets=stored_offsets)


def multiply_kept(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """The operator adds nothing to weights, so a block's offset is multiplied with the sum of its inputs."""
    product = multiply_blocks(graph, x, matrix)
    if matrix.offsets is None:
        return product
    sums = graph.once(f"{x}_block_sums", lambda: _block_sums(graph, x, matrix.inputs))
    return graph.op("Add", [product, graph.op("MatMul", [sums, graph.stored(matrix.offsets)])])


def _block_sums(graph: GraphBuilder, x: str, inputs: int) -> str:
    """x [1, rows, inputs] -> [1, rows, inputs / 32]."""
    blocks = graph.reshape(x, 1, "rows", inputs // KEPT_BLOCK, KEPT_BLOCK)
    return graph.op("ReduceSum", [blocks, graph.integers(-1)], keepdims=0)


# At most eight bits a weight and a float32 scale for each block of 32.
KEEP = Method(
    Quant.KEEP,
    Activations.FLOAT32,
    _store,
    multiply_kept,
    bytes_per_weight=1 + 4 / KEPT_BLOCK,
    wide=Quant.INT8,
    read_floats=read_floats,
    kv=KvType.INT8,
)
