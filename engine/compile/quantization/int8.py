"""int8: blocks of 32 inputs share a scale; the product rounds activations to 8 bits by itself, block by block."""

from collections.abc import Iterator

import numpy as np
import onnx

from engine.compile.ahead import ahead
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.quantization.blocks import (
    INT4_MIDDLE,
    INT8_MIDDLE,
    Blocks,
    Bytes,
    Int4Blocks,
    Int8Blocks,
    unpack_nibbles,
)
from engine.compile.quantization.int4 import KEPT_BLOCK, dequantised, multiply_blocks
from engine.compile.quantization.method import Activations, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.quantization.scales import without_zeros
from engine.compile.weight_file import WeightFile

INT8_LIMIT = 127


def int8_blocks(piece: Float32 | Blocks) -> Int8Blocks:
    """Runs of rows [outputs, inputs]: floats are rounded and padded to whole blocks, codes of a file only moved."""
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


def store_int8(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Slice by slice in the layout of `Int8Blocks`."""
    scales: list[Float32] = []

    def codes() -> Iterator[Bytes]:
        for blocks in ahead(int8_blocks, matrix.slices if matrix.kept is None else matrix.kept):
            scales.append(blocks.scales)
            yield blocks.codes

    dims = (matrix.outputs, -(-matrix.inputs // KEPT_BLOCK), KEPT_BLOCK)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.UINT8, dims, codes())
    stored_scales = file.add(f"{matrix.name}_scales", np.concatenate(scales))
    return StoredMatrix(matrix.inputs, matrix.outputs, weight, stored_scales, block=KEPT_BLOCK, bits=8)


# Eight bits a weight and a float32 scale for each block of 32.
INT8 = Method(Quant.INT8, Activations.FLOAT32, store_int8, multiply_blocks, bytes_per_weight=1 + 4 / KEPT_BLOCK)
