"""keep: blocks of 32 that a file has stay what they are; everything else becomes blocks of 8 bits, hardly rounded."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, KvType, Quant
from engine.compile.quantization.blocks import INT4_MIDDLE, INT8_MIDDLE, Blocks, Int4Blocks, Int8Blocks, unpack_nibbles
from engine.compile.quantization.int4 import KEPT_BLOCK, multiply_blocks, read_floats, store_blocks
from engine.compile.quantization.method import Activations, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.quantization.scales import without_zeros
from engine.compile.weight_file import WeightFile

INT8_LIMIT = 127


def int8_blocks(piece: Float32 | Blocks) -> Int8Blocks:
    """Runs of rows [outputs, inputs]: floats are rounded and padded to whole blocks, codes of 4 bits only moved."""
    if isinstance(piece, Int8Blocks):
        return piece
    if isinstance(piece, Int4Blocks):
        codes = unpack_nibbles(piece.packed) + np.uint8(INT8_MIDDLE - INT4_MIDDLE)
        return Int8Blocks(codes, piece.scales)
    padded = np.pad(piece, ((0, 0), (0, -piece.shape[1] % KEPT_BLOCK)))
    blocks = padded.reshape(len(piece), -1, KEPT_BLOCK)
    scales = without_zeros(np.abs(blocks).max(axis=2) / np.float32(INT8_LIMIT))
    codes = np.rint(blocks / scales[:, :, None]) + np.float32(INT8_MIDDLE)
    return Int8Blocks(codes.astype(np.uint8), scales)


def _store(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    if matrix.is_four_bit:
        return store_blocks(file, matrix, replace(arguments, block=KEPT_BLOCK, asymmetric=False))
    scales: list[Float32] = []

    def codes() -> Iterator[NDArray[np.uint8]]:
        for piece in matrix.slices if matrix.kept is None else matrix.kept:
            blocks = int8_blocks(piece)
            scales.append(blocks.scales)
            yield blocks.codes

    dims = (matrix.outputs, -(-matrix.inputs // KEPT_BLOCK), KEPT_BLOCK)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.UINT8, dims, codes())
    stored_scales = file.add(f"{matrix.name}_scales", np.concatenate(scales))
    return StoredMatrix(matrix.inputs, matrix.outputs, weight, stored_scales, block=KEPT_BLOCK, bits=8)


# Eight bits a weight and a float32 scale for each block of 32.
KEEP = Method(
    Quant.KEEP,
    Activations.FLOAT32,
    _store,
    multiply_blocks,
    bytes_per_weight=1 + 4 / KEPT_BLOCK,
    wide=Quant.INT8,
    read_floats=read_floats,
    kv=KvType.INT8,
)
