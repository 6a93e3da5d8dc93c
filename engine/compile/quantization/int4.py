"""int4: blocks of inputs share a scale, perhaps a zero point; the product rounds activations to 8 bits by itself."""

from collections.abc import Iterator

import numpy as np
import onnx

from engine.compile.ahead import ahead
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantization.blocks import (
    INT4_MIDDLE,
    Blocks,
    Bytes,
    Int4Blocks,
    Int8Blocks,
    pack_nibbles,
    unpack_nibbles,
)
from engine.compile.quantization.method import Activations, CodeChoice, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.quantization.scales import without_zeros
from engine.compile.weight_file import WeightFile

KEPT_BLOCK = 32


def int4_blocks(weight: Float32, block: int, asymmetric: bool) -> Int4Blocks:
    """Quantise [outputs, inputs]: `block` inputs share a scale; a last block that is not full is padded with zeros."""
    outputs, inputs = weight.shape
    if inputs % block:
        weight = np.pad(weight, ((0, 0), (0, -inputs % block)))
    blocks = weight.reshape(outputs, -1, block)
    high, low = blocks.max(axis=2), blocks.min(axis=2)
    if asymmetric:
        return _asymmetric(blocks, high, low)
    # The larger side is put on -8, the end of the range that has one step more.
    extreme = np.where(high > -low, high, low)
    scales = without_zeros(extreme / np.float32(-INT4_MIDDLE))
    codes = _codes(blocks, scales, np.float32(INT4_MIDDLE))
    return Int4Blocks(pack_nibbles(codes), scales, None)


def _asymmetric(blocks: Float32, high: Float32, low: Float32) -> Int4Blocks:
    high, low = np.maximum(high, 0), np.minimum(low, 0)
    scales = without_zeros((high - low) / np.float32(15))
    zero_points = np.clip(np.rint(-low / scales), 0, 15)
    codes = _codes(blocks, scales, zero_points[:, :, None])
    codes_of_zero = zero_points.astype(np.uint8)
    if codes_of_zero.shape[1] % 2:
        codes_of_zero = np.pad(codes_of_zero, ((0, 0), (0, 1)), constant_values=INT4_MIDDLE)
    return Int4Blocks(pack_nibbles(codes), scales, pack_nibbles(codes_of_zero))


def _codes(blocks: Float32, scales: Float32, middle: Float32 | np.float32) -> Bytes:
    scaled = blocks * (np.float32(1.0) / scales)[:, :, None]
    scaled += middle + np.float32(0.5)  # truncation of a positive number then rounds
    np.clip(scaled, 0, 15.5, out=scaled)
    return scaled.astype(np.uint8)


def dequantised(blocks: Int4Blocks, inputs: int) -> Float32:
    """The weights [outputs, inputs] that codes and scales stand for."""
    outputs, count, half = blocks.packed.shape
    codes = unpack_nibbles(blocks.packed).reshape(outputs, count, 2 * half).astype(np.float32)
    if blocks.zero_points is None:
        codes -= np.float32(INT4_MIDDLE)
    else:
        codes -= unpack_nibbles(blocks.zero_points)[:, :count, None].astype(np.float32)
    codes *= blocks.scales[:, :, None]
    if blocks.offsets is not None:
        codes += blocks.offsets[:, :, None]
    return codes.reshape(outputs, -1)[:, :inputs]


def store_blocks(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Slice by slice in the layout of `Int4Blocks`; blocks that come in this very form are kept.

    Those with offsets, or of another size, do not: they are rounded again.
    """
    block = arguments.block
    pieces = matrix.slices if matrix.kept is None else matrix.kept
    scales: list[Float32] = []
    zero_points: list[Bytes] = []

    def packed() -> Iterator[Bytes]:
        for blocks in ahead(lambda piece: _as_blocks(piece, matrix.inputs, block, arguments.asymmetric), pieces):
            scales.append(blocks.scales)
            if blocks.zero_points is not None:
                zero_points.append(blocks.zero_points)
            yield blocks.packed

    dims = (matrix.outputs, -(-matrix.inputs // block), block // 2)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.UINT8, dims, packed())
    stored_scales = file.add(f"{matrix.name}_scales", np.concatenate(scales))
    stored_zeros = file.add(f"{matrix.name}_zeros", np.concatenate(zero_points)) if zero_points else None
    return StoredMatrix(matrix.inputs, matrix.outputs, weight, stored_scales, stored_zeros, block)


def _as_blocks(piece: Float32 | Blocks, inputs: int, block: int, asymmetric: bool) -> Int4Blocks:
    if isinstance(piece, Int4Blocks) and is_kept(piece, block, asymmetric):
        return piece
    return int4_blocks(floats_of(piece, inputs), block, asymmetric)


def is_kept(piece: Int4Blocks, block: int, asymmetric: bool, has_offsets: bool = False) -> bool:
    """Whether blocks that a file has are stored as they are in blocks of this form. has_offsets: it has room."""
    is_symmetric = piece.offsets is None or has_offsets
    return piece.block == block and is_symmetric and (piece.zero_points is not None) == asymmetric


def floats_of(piece: Float32 | Blocks, inputs: int) -> Float32:
    """A run of rows [some, inputs] as the floats that it stands for."""
    if isinstance(piece, Int4Blocks):
        return dequantised(piece, inputs)
    return piece.floats()[:, :inputs] if isinstance(piece, Int8Blocks) else piece


def multiply_blocks(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """Blocks of 4 or 8 bits. Accuracy level 4: the operator rounds each block of each row to int8 by itself."""
    assert matrix.scales is not None
    zeros = [graph.stored(matrix.zero_points)] if matrix.zero_points else []
    return graph.op(
        "MatMulNBits",
        [x, graph.stored(matrix.weight), graph.parameter(matrix.scales), *zeros],
        domain=CONTRIB,
        K=matrix.inputs,
        N=matrix.outputs,
        bits=matrix.bits,
        block_size=matrix.block,
        accuracy_level=4,
    )


# Four bits a weight and a float32 scale for each block of 32.
INT4 = Method(
    Quant.INT4,
    Activations.FLOAT32,
    store_blocks,
    multiply_blocks,
    bytes_per_weight=0.5 + 4 / 32,
    choice=CodeChoice(),
)
