"""w8a16 (a scale for each output) and w4a16 (one for each block): symmetric weights, activations of 16-bit integers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.quantisation.methods.blocks import Blocks, Float32, floats_of, pack_nibbles
from engine.compile.quantisation.methods.method import Activations, CodeChoice, FloatMatrix, Method, StoredMatrix
from engine.compile.quantisation.rounding.codes import BlockCodes, BlockScales, rounded, rounded_rows
from engine.compile.quantisation.rounding.gptq import has_multiples, searched_multiples
from engine.compile.quantisation.weight_file import WeightFile
from engine.errors import CompileError

SignedBytes = NDArray[np.int8]
Columns = tuple[SignedBytes, Float32]  # of a matrix: integers [outputs, inputs], scales [outputs] or [outputs, blocks]


def int8_outputs(weight: Float32) -> Columns:
    """[outputs, inputs]: the largest weight of each output becomes 127; an output of zeros gets a scale of 1."""
    return _row_columns(rounded_rows(weight))


def _row_columns(codes: BlockCodes) -> Columns:
    return codes.integers(), codes.grid.scales[:, 0]


# The HTP makes 0 or 65535 of an output for which (input step * scale) / output step is under 2^-24, as its emulator
# shows. The largest of a matrix is about 2^-11.
FINEST_SHARE = 2.0**-10


def joined(pieces: Sequence[Columns]) -> Columns:
    """Pieces of a matrix, one below the other, turned to [inputs, outputs] as MatMul reads it; scales turned too."""
    integers, scales = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    integers, scales = without_finest(integers, scales)
    return np.ascontiguousarray(integers.T), np.ascontiguousarray(scales.T)


def without_finest(integers: SignedBytes, scales: Float32) -> Columns:
    """No output has a scale under `FINEST_SHARE` of the matrix's largest: its integers are smaller instead. Of 16 bits
    for all outputs, such an output has the last few steps."""
    reach = scales.reshape(len(scales), -1).max(axis=1)
    reach[~integers.any(axis=1)] = np.inf  # zeros with whatever scale
    least = FINEST_SHARE * reach[np.isfinite(reach)].max(initial=0.0)
    (fine,) = np.nonzero(reach < least)
    if not len(fine):
        return integers, scales
    factors = (reach[fine] / least).astype(np.float32)
    coarse, wider = integers.copy(), scales.copy()
    coarse[fine] = np.rint(integers[fine] * factors[:, None])
    wider[fine] = (scales[fine].T / factors).T
    return coarse, wider


def multiply_integers(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """The stored integers stand behind a DequantizeLinear, which the back end folds into the product."""
    assert matrix.scales is not None
    inputs = [graph.stored(matrix.weight), graph.stored(matrix.scales)]
    form: dict[str, Any] = {"axis": 0, "block_size": matrix.block} if matrix.block else {"axis": 1}
    return graph.op("MatMul", [x, graph.op("DequantizeLinear", inputs, name=f"{matrix.weight.name}_real", **form)])


def store_int8_outputs(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Integers [inputs, outputs] and scales [outputs]. Rows in this very form are kept."""
    inputs = matrix.inputs
    codes = (_kept(piece, inputs, inputs, 8) or rounded_rows(floats_of(piece, inputs)) for piece in matrix.in_order)
    integers, scales = joined([_row_columns(each) for each in codes])
    dims = (inputs, matrix.outputs)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.INT8, dims, [integers])
    return StoredMatrix(*dims, weight, file.add(f"{matrix.name}_scales", scales))


def _kept(piece: Float32 | Blocks, inputs: int, block: int, bits: int) -> BlockCodes | None:
    """None unless these are symmetric codes of this very form, in whole blocks."""
    if not isinstance(piece, Blocks) or piece.offsets is not None or piece.zero_points is not None:
        return None
    if (piece.bits, piece.block, piece.codes.shape[1] * block) != (bits, block, inputs):
        return None
    return BlockCodes(piece.codes, BlockScales(piece.scales, None, block), inputs, bits)


W8A16 = Method(
    Quant.W8A16,
    Activations.INTEGER,
    store_int8_outputs,
    multiply_integers,
    bytes_per_weight=1,
    choice=CodeChoice(has_rows=True),
)


def int4_columns(weight: Float32, block: int) -> BlockCodes:
    """Quantise [outputs, inputs]: `block` inputs share a scale, which is 1 to 16 times the smallest of its output. That
    form (low power block quantisation) is what the HTP multiplies without leaving integers: when a context binary is
    made, the 16th part of an output's largest scale becomes the output's scale and the rest small integers.
    CompileError when the blocks do not come out even."""
    inputs = weight.shape[1]
    if inputs % block:
        raise CompileError(f"w4a16 needs matrices whose {inputs} inputs {block} divides; choose another --block")
    return rounded(weight, searched_multiples(weight, block, np.ones(inputs, np.float32), shares=(1.0,)))


def pack_int4(integers: SignedBytes) -> NDArray[np.uint8]:
    """ONNX's INT4 layout: two's complement, the first of two in the low half; an odd last one stands beside a zero."""
    flat = integers.reshape(-1).view(np.uint8) & np.uint8(15)
    return pack_nibbles(np.pad(flat, (0, flat.size % 2)))


def _store_w4a16(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Integers [inputs, outputs], two in a byte, and scales [blocks, outputs]. Blocks in this very form are kept."""
    codes = [_columns(piece, matrix.inputs, arguments.block) for piece in matrix.in_order]
    integers, scales = joined([(each.integers(), each.grid.scales) for each in codes])
    dims = (matrix.inputs, matrix.outputs)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.INT4, dims, [pack_int4(integers)])
    stored_scales = file.add(f"{matrix.name}_scales", scales)
    return StoredMatrix(*dims, weight, stored_scales, block=arguments.block)


def _columns(piece: Float32 | Blocks, inputs: int, block: int) -> BlockCodes:
    kept = _kept(piece, inputs, block, bits=4)
    return kept if kept and has_multiples(kept.grid.scales) else int4_columns(floats_of(piece, inputs), block)


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
    takes_block=True,
)
