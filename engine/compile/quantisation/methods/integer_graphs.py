"""w8a16 (a scale for each output) and w4a16 (one for each block): symmetric weights, activations of 16-bit integers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.quantisation.methods.blocks import INT4_MIDDLE, Blocks
from engine.compile.quantisation.methods.integer_blocks import floats_of
from engine.compile.quantisation.methods.method import (
    Activations,
    CodeChoice,
    Float32,
    FloatMatrix,
    Method,
    StoredMatrix,
)
from engine.compile.quantisation.rounding.lpbq import has_multiples
from engine.compile.quantisation.weight_file import WeightFile
from engine.errors import CompileError

SignedBytes = NDArray[np.int8]

INT8_LIMIT = 127
TINY = np.float32(1e-30)


@dataclass(frozen=True, slots=True)
class Columns:
    """Integers [outputs, inputs] of a matrix [outputs, inputs], and scales [outputs] or [outputs, blocks]."""

    integers: SignedBytes
    scales: Float32


def int8_outputs(weight: Float32) -> Columns:
    """[outputs, inputs]: the largest weight of each output becomes 127."""
    scales = scales_of(np.abs(weight).max(axis=1), INT8_LIMIT)
    return Columns(np.rint(weight / scales[:, None]).astype(np.int8), scales)


def scales_of(peaks: Float32, limit: int) -> Float32:
    """Zeros, and what a scale would vanish for, get a scale of 1: they stay zeros instead of becoming NaN."""
    return np.where(peaks < TINY, np.float32(1.0), peaks / np.float32(limit)).astype(np.float32)


def joined(pieces: Sequence[Columns]) -> tuple[SignedBytes, Float32]:
    """Pieces of a matrix, one below the other, turned to [inputs, outputs] as MatMul reads it; scales turned too."""
    integers = np.concatenate([piece.integers for piece in pieces]).T
    scales = np.concatenate([piece.scales for piece in pieces]).T
    return np.ascontiguousarray(integers), np.ascontiguousarray(scales)


def multiply_integers(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """The stored integers stand behind a DequantizeLinear, which the back end folds into the product."""
    assert matrix.scales is not None
    inputs = [graph.stored(matrix.weight), graph.stored(matrix.scales)]
    name = f"{matrix.weight.name}_real"
    if matrix.block:
        real = graph.op("DequantizeLinear", inputs, name=name, axis=0, block_size=matrix.block)
    else:
        real = graph.op("DequantizeLinear", inputs, name=name, axis=1)
    return graph.op("MatMul", [x, real])


def _store_w8a16(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Integers [inputs, outputs] and scales [outputs]."""
    integers, scales = joined([int8_outputs(piece) for piece in matrix.slices])
    dims = (matrix.inputs, matrix.outputs)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.INT8, dims, [integers])
    return StoredMatrix(*dims, weight, file.add(f"{matrix.name}_scales", scales))


W8A16 = Method(Quant.W8A16, Activations.INTEGER, _store_w8a16, multiply_integers, bytes_per_weight=1)
INT4_LIMIT = 7
SCALE_STEPS = 16
# Four bits gain from cutting off a block's largest weight: the share of the peak with the least squared error.
CLIPS = np.linspace(1.05, 0.6, 16, dtype=np.float32)


def int4_columns(weight: Float32, block: int) -> Columns:
    """Quantise [outputs, inputs]: `block` inputs share a scale, which is 1 to 16 times the smallest of its output.

    That form (low power block quantisation) is what the HTP multiplies without leaving integers: when a context binary
    is made, the 16th part of an output's largest scale becomes the output's scale and the rest small integers.
    CompileError when the blocks do not come out even.
    """
    outputs, inputs = weight.shape
    if inputs % block:
        raise CompileError(f"w4a16 needs matrices whose {inputs} inputs {block} divides; choose another --block")
    blocks = weight.reshape(outputs, -1, block)
    wanted = _best_scales(blocks)
    largest = wanted.max(axis=1, keepdims=True)
    units = np.where(largest == 0, np.float32(1.0), largest) / np.float32(SCALE_STEPS)
    scales = (np.clip(np.rint(wanted / units), 1, SCALE_STEPS) * units).astype(np.float32)
    return Columns(_round(blocks, scales).reshape(outputs, inputs), scales)


def _best_scales(blocks: Float32) -> Float32:
    """[outputs, blocks]: of the clippings of each block the one that loses least; 0 for a block of zeros."""
    peaks = np.abs(blocks).max(axis=2)
    best = scales_of(peaks, INT4_LIMIT)
    least = np.full(peaks.shape, np.inf, np.float32)
    for clip in CLIPS:
        scales = scales_of(peaks * clip, INT4_LIMIT)
        error = np.square(_round(blocks, scales) * scales[:, :, None] - blocks).sum(axis=2)
        best = np.where(error < least, scales, best)
        least = np.minimum(error, least)
    return np.where(peaks < TINY, np.float32(0.0), best)


def pack_int4(integers: SignedBytes) -> NDArray[np.uint8]:
    """ONNX's INT4 layout: two's complement, the first of two in the low half; an odd last one stands beside a zero."""
    flat = integers.reshape(-1).view(np.uint8) & np.uint8(15)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return flat[0::2] | (flat[1::2] << np.uint8(4))


def _round(blocks: Float32, scales: Float32) -> SignedBytes:
    """Four-bit integers of blocks [outputs, blocks, block]."""
    rounded = np.clip(np.rint(blocks / scales[:, :, None]), -INT4_LIMIT - 1, INT4_LIMIT)
    return np.asarray(rounded, np.int8)


def _store_w4a16(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Integers [inputs, outputs], two in a byte, and scales [blocks, outputs]. Blocks in this very form are kept."""
    pieces = matrix.in_order
    integers, scales = joined([_columns(piece, matrix.inputs, arguments.block) for piece in pieces])
    dims = (matrix.inputs, matrix.outputs)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.INT4, dims, [pack_int4(integers)])
    stored_scales = file.add(f"{matrix.name}_scales", scales)
    return StoredMatrix(*dims, weight, stored_scales, block=arguments.block)


def _columns(piece: Float32 | Blocks, inputs: int, block: int) -> Columns:
    if isinstance(piece, Blocks) and _is_kept(piece, inputs, block):
        signed = piece.codes.astype(np.int8) - np.int8(INT4_MIDDLE)
        return Columns(signed.reshape(len(signed), inputs), piece.scales)
    return int4_columns(floats_of(piece, inputs), block)


def _is_kept(piece: Blocks, inputs: int, block: int) -> bool:
    is_symmetric = piece.bits == 4 and piece.offsets is None and piece.zero_points is None
    is_even = piece.block == block and piece.codes.shape[1] * block == inputs
    return is_symmetric and is_even and has_multiples(piece.scales)


W4A16 = Method(
    Quant.W4A16,
    Activations.INTEGER,
    _store_w4a16,
    multiply_integers,
    bytes_per_weight=0.5 + 1 / 32,  # in a binary a block of 32 has a scale of 8 bits
    head=Quant.W8A16,  # one scale for each block of 32 is too little for the LM head
    has_integer_blocks=True,
    choice=CodeChoice(has_multiples=True),
    wider=Quant.W8A16,
)
