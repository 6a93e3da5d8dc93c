"""int4, perhaps with zero points, and int8: blocks of inputs share a scale; products round activations to 8 bits."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import onnx

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.methods.blocks import (
    INT8_MIDDLE,
    KEPT_BLOCK,
    BlockForm,
    Blocks,
    Bytes,
)
from engine.compile.quantisation.methods.method import (
    Activations,
    CodeChoice,
    Float32,
    FloatMatrix,
    Method,
    Pieces,
    StackForm,
    StoredMatrix,
    ahead,
)
from engine.compile.quantisation.rounding.codes import Coding, extreme_scales, rounded, usable
from engine.compile.quantisation.weight_file import WeightFile


def int4_blocks(weight: Float32, block: int, asymmetric: bool) -> Blocks:
    """Quantise [outputs, inputs]: `block` inputs share a scale; a last block that is not full is padded with zeros."""
    return rounded(
        weight, extreme_scales(weight, block, Coding.ASYMMETRIC if asymmetric else Coding.SYMMETRIC)
    ).blocks()


def store_blocks(
    file: WeightFile, matrix: FloatMatrix, form: BlockForm, as_blocks: Callable[[Float32 | Blocks], Blocks]
) -> StoredMatrix:
    """Slice by slice as `Blocks.stored` has them, with zero points or offsets if there are any.

    The slices are those in the form's order of inputs.
    """
    found: list[tuple[Float32, Bytes | None, Float32 | None]] = []
    slices = matrix.in_order if form.order == b"" or matrix.kept is None else matrix.kept

    def stored(piece: Float32 | Blocks) -> tuple[Bytes, Float32, Bytes | None, Float32 | None]:
        blocks = as_blocks(piece)
        return blocks.stored(), blocks.scales, blocks.stored_points(), blocks.offsets

    def packed() -> Iterator[Bytes]:
        for codes, scales, points, offsets in ahead(stored, slices):
            found.append((scales, points, offsets))
            yield codes

    dims = (matrix.outputs, -(-matrix.inputs // form.block), form.block * form.bits // 8)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.UINT8, dims, packed())
    stored_scales = file.add(f"{matrix.name}_scales", np.concatenate([scales for scales, _, _ in found]))
    zeros = [points for _, points, _ in found if points is not None]
    stored_zeros = file.add(f"{matrix.name}_zeros", np.concatenate(zeros)) if zeros else None
    offsets = np.concatenate([np.zeros_like(scales) if added is None else added for scales, _, added in found])
    stored_offsets = file.add(f"{matrix.name}_offsets", offsets) if offsets.any() else None
    places = form.places()
    order = None if places is None else file.add(f"{matrix.name}_order", places)
    sizes = matrix.inputs, matrix.outputs
    return StoredMatrix(*sizes, weight, stored_scales, stored_zeros, form.block, form.bits, stored_offsets, order)


def _store_int4(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Blocks that fit this very form are kept; others are rounded again."""
    block, asymmetric = arguments.block, arguments.asymmetric
    form = BlockForm(4, block, asymmetric)
    return store_blocks(file, matrix, form, lambda piece: as_int4_blocks(piece, matrix.inputs, form))


def as_int4_blocks(piece: Float32 | Blocks, inputs: int, form: BlockForm) -> Blocks:
    """Rows [some, inputs]: blocks that fit this form as they are, others rounded to nearest."""
    kept = kept_form(piece, inputs, form)
    return int4_blocks(floats_of(piece, inputs), form.block, form.has_zero_points) if kept is None else kept


def kept_form(piece: Float32 | Blocks, inputs: int, form: BlockForm, has_offsets: bool = False) -> Blocks | None:
    """Blocks of 4 bits in this form, their codes unchanged; None where it cannot hold them. has_offsets: it has room
    for offsets, which zero points can become."""
    if not isinstance(piece, Blocks) or piece.bits != 4 or piece.block % form.block:
        return None
    if piece.block != form.block:
        piece = piece.spread(form.block, inputs)
    if has_offsets and not form.has_zero_points:
        piece = piece.with_offsets()
    is_held = piece.offsets is None or has_offsets
    return piece if is_held and (piece.zero_points is not None) == form.has_zero_points else None


def floats_of(piece: Float32 | Blocks, inputs: int) -> Float32:
    """A run of rows [some, inputs] as the floats that it stands for."""
    return piece.floats()[:, :inputs] if isinstance(piece, Blocks) else piece


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


def _int4_stack(pieces: Pieces, arguments: CompileArguments) -> StackForm:
    return StackForm(4, arguments.block, arguments.asymmetric)


# Four bits a weight and a float32 scale for each block of 32.
INT4 = Method(
    Quant.INT4,
    Activations.FLOAT32,
    _store_int4,
    multiply_blocks,
    bytes_per_weight=0.5 + 4 / 32,
    choice=CodeChoice(),
    wider=Quant.INT8,
    has_rows=True,
    takes_block=True,
    stack=_int4_stack,
)
INT8_LIMIT = 127


def int8_blocks(piece: Float32 | Blocks, inputs: int, block: int = KEPT_BLOCK, has_points: bool = False) -> Blocks:
    """Runs of rows [outputs, inputs]: floats are rounded and padded to whole blocks, codes of a file only moved.

    Codes that can only be told with an offset, with smaller blocks, or with a zero point of 8 bits where there are none
    (has_points) count as floats.
    """
    if isinstance(piece, Blocks) and not _is_held(piece, block, has_points):
        piece = floats_of(piece, inputs)
    if isinstance(piece, Blocks):
        if piece.bits == 4:
            piece = Blocks(8, piece.codes + np.uint8(INT8_MIDDLE) - piece.points()[:, :, None], piece.scales)
        blocks = piece if piece.block == block else piece.spread(block, inputs)
    else:
        padded = np.pad(piece, ((0, 0), (0, -piece.shape[1] % block)))
        values = padded.reshape(len(piece), -1, block)
        scales = usable(np.abs(values).max(axis=2) / np.float32(INT8_LIMIT))
        codes = np.rint(values / scales[:, :, None]) + np.float32(INT8_MIDDLE)
        blocks = Blocks(8, codes.astype(np.uint8), scales)
    return replace(blocks, zero_points=blocks.points()) if has_points else blocks


def _is_held(piece: Blocks, block: int, has_points: bool) -> bool:
    has_own = piece.bits == 8 and piece.zero_points is not None
    return piece.offsets is None and (has_points or not has_own) and piece.block % block == 0


def store_int8(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Slice by slice, in blocks of 32."""
    return store_blocks(file, matrix, BlockForm(8), lambda piece: int8_blocks(piece, matrix.inputs))


def int8_stack(pieces: Pieces, arguments: CompileArguments) -> StackForm:
    return StackForm(8, KEPT_BLOCK)


# Eight bits a weight and a float32 scale for each block of 32.
INT8 = Method(
    Quant.INT8,
    Activations.FLOAT32,
    store_int8,
    multiply_blocks,
    bytes_per_weight=1 + 4 / KEPT_BLOCK,
    has_rows=True,
    stack=int8_stack,
)
