"""Blocks of inputs that share a scale: products round activations to 8 bits. int4, perhaps with zero points, and int8.

keep and w4: blocks that a file has stay what they are. Others, and in layers those of 5 bits, become blocks of 8 bits,
or of 4 for an NPU.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.methods.blocks import (
    INT8_LIMIT,
    INT8_MIDDLE,
    KEPT_BLOCK,
    BlockForm,
    Blocks,
    Bytes,
    Float32,
    floats_of,
)
from engine.compile.quantisation.methods.hadamard import RUN, rotate_runs, rotated_runs
from engine.compile.quantisation.methods.integer_rows import multiply_rows, store_parts
from engine.compile.quantisation.methods.method import Activations, CodeChoice, FloatMatrix, Method, StoredMatrix
from engine.compile.quantisation.rounding.codes import Coding, extreme_scales, in_blocks, rounded, usable
from engine.compile.quantisation.weight_file import WeightFile, ahead

W4_FORM = BlockForm(4)
ZEROS, ONES = 0x88, 0x99  # two codes of 4 bits around 8
SUMMED_TOGETHER = 8  # blocks in a product of few rows; with all of a row most of the work is zeros


def int4_blocks(weight: Float32, block: int, asymmetric: bool, has_offsets: bool = False) -> Blocks:
    """Quantise [outputs, inputs]: `block` inputs share a scale; a last block that is not full is padded with zeros."""
    coding = Coding.OFFSET if has_offsets else Coding.ASYMMETRIC if asymmetric else Coding.SYMMETRIC
    return rounded(weight, extreme_scales(weight, block, coding)).blocks()


def store_blocks(
    file: WeightFile, matrix: FloatMatrix, form: BlockForm, as_blocks: Callable[[Float32 | Blocks], Blocks]
) -> StoredMatrix:
    """Slice by slice as `Blocks.stored` has them, with zero points or offsets if there are any. The slices are those in
    the form's order of inputs."""
    found: list[tuple[Float32, Bytes | None, Float32 | None]] = []
    slices = matrix.kept if form.order and matrix.kept else matrix.in_order

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
    sizes, numbers = (matrix.inputs, matrix.outputs), (form.block, form.bits)
    return StoredMatrix(*sizes, weight, stored_scales, stored_zeros, *numbers, stored_offsets, order, form.is_rotated)


def _store_int4(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    form = BlockForm(4, arguments.block, arguments.asymmetric)
    return store_blocks(file, matrix, form, lambda piece: as_int4_blocks(piece, matrix.inputs, form))


def as_int4_blocks(piece: Float32 | Blocks, inputs: int, form: BlockForm, has_offsets: bool = False) -> Blocks:
    """Rows [some, inputs]: blocks that fit this form as they are, others rounded to nearest. has_offsets: of w4."""
    if (kept := kept_form(piece, inputs, form, has_offsets)) is not None:
        return kept
    return int4_blocks(floats_of(piece, inputs), form.block, form.has_zero_points, has_offsets)


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


def multiply_blocks(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """Blocks of 4 or 8 bits, or rows of 8."""
    if not matrix.block:
        return multiply_rows(graph, x, matrix)
    assert matrix.scales is not None
    x = rotate_runs(graph, x, matrix.inputs) if matrix.is_rotated else x
    zeros = [graph.stored(matrix.zero_points)] if matrix.zero_points else []
    inputs = [x, graph.stored(matrix.weight), graph.parameter(matrix.scales), *zeros]
    return _product(graph, inputs, matrix.inputs, matrix.outputs, BlockForm(matrix.bits, matrix.block))


def _product(graph: GraphBuilder, operands: list[str], inputs: int, outputs: int, form: BlockForm) -> str:
    """Accuracy level 4: the operator rounds each block of each row to int8 by itself."""
    sizes: dict[str, Any] = {"K": inputs, "N": outputs, "bits": form.bits, "block_size": form.block}
    return graph.op("MatMulNBits", operands, domain=CONTRIB, **sizes, accuracy_level=4)


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
    stack=lambda _, arguments: BlockForm(4, arguments.block, arguments.asymmetric),
)


def int8_blocks(piece: Float32 | Blocks, inputs: int, block: int = KEPT_BLOCK, has_points: bool = False) -> Blocks:
    """Runs of rows [outputs, inputs]: floats are rounded and padded to whole blocks, codes of a file only moved. Codes
    that can only be told with an offset, with smaller blocks, or with a zero point of 8 bits where there are none
    (has_points) count as floats."""
    if isinstance(piece, Blocks) and _is_held(piece, block, has_points):
        if piece.bits == 4:
            piece = Blocks(8, piece.codes + np.uint8(INT8_MIDDLE) - piece.points()[:, :, None], piece.scales)
        blocks = piece if piece.block == block else piece.spread(block, inputs)
    else:
        values = in_blocks(floats_of(piece, inputs), block)
        scales = usable(np.maximum(values.max(axis=2), -values.min(axis=2)) / np.float32(INT8_LIMIT))
        codes = np.rint(np.divide(values, scales[:, :, None]))
        codes += np.float32(INT8_MIDDLE)
        blocks = Blocks(8, codes.astype(np.uint8), scales)
    return replace(blocks, zero_points=blocks.points()) if has_points else blocks


def _is_held(piece: Blocks, block: int, has_points: bool) -> bool:
    has_own = piece.bits == 8 and piece.zero_points is not None
    return piece.offsets is None and (has_points or not has_own) and piece.block % block == 0


WIDE_BLOCK, PADDED = 128, 1.15  # the widest that pays, and how much longer rows may become by whole blocks
OF_ROWS = 128  # inputs of a row are a multiple of it


def int8_form(inputs: int, is_npu: bool) -> BlockForm:
    """Wide blocks are multiplied 1.3 times as fast as those of 32; over rotated inputs they lose about as much."""
    has_wide = inputs % RUN == 0 and -(-inputs // WIDE_BLOCK) * WIDE_BLOCK <= PADDED * inputs
    return BlockForm(8, WIDE_BLOCK, is_rotated=True) if has_wide and not is_npu else BlockForm(8)


def _store_int8(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """Gate and up as rows: a step of 128 rows takes 0.8 of the time, of 16 rows 0.9, of one 1.1. With AMX also
    what is robust: it takes 0.7, 0.7 and 0.8."""
    is_faster = matrix.parts > 1 or (arguments.amx and matrix.is_robust)
    if is_faster and matrix.inputs % OF_ROWS == 0 and not arguments.is_npu:
        return store_parts(file, matrix)
    form = int8_form(matrix.inputs, arguments.is_npu)

    def rounded_rows(piece: Float32 | Blocks) -> Blocks:
        if not form.is_rotated:
            return int8_blocks(piece, matrix.inputs)
        return int8_blocks(rotated_runs(floats_of(piece, matrix.inputs)), matrix.inputs, form.block)

    return store_blocks(file, matrix, form, rounded_rows)


# Eight bits a weight and a float32 scale for each block of 128 over rotated inputs, or of 32.
INT8 = Method(
    Quant.INT8,
    Activations.FLOAT32,
    _store_int8,
    multiply_blocks,
    bytes_per_weight=1 + 4 / KEPT_BLOCK,
    has_rows=True,
    stack=lambda *_: BlockForm(8),
)


def _store_keep(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """In the form in which all of the matrix comes, else in 8 bits."""

    def kept(piece: Float32 | Blocks) -> Blocks:
        assert isinstance(piece, Blocks)
        return piece

    return store_blocks(file, matrix, matrix.form, kept) if matrix.form else _store_int8(file, matrix, arguments)


def multiply_kept(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """The operator adds nothing to weights, so a block's offset is multiplied with the sum of its inputs. Of its inputs
    as the operator has rounded them: what rounding loses is then a matter of whole weights, which are smaller than what
    they are without the offset."""
    if matrix.order is not None:
        x = graph.op("Gather", [x, graph.stored(matrix.order)], axis=2)
    product = multiply_blocks(graph, x, matrix)
    if matrix.offsets is None:
        return product
    sums = graph.once(f"{x}_block_sums", lambda: _block_sums(graph, x, matrix.inputs))  # [1, rows, blocks]
    offsets = graph.parameter(matrix.offsets)  # [outputs, blocks]
    if graph.dtype == np.float16:
        added = graph.op("MatMul", [sums, graph.op("Transpose", [offsets], perm=[1, 0])])
    else:
        added = graph.op("FusedMatMul", [sums, offsets], domain=CONTRIB, transB=1)
    return graph.op("Add", [product, added])


def _block_sums(graph: GraphBuilder, x: str, inputs: int) -> str:
    """x [1, rows, inputs] -> [1, rows, inputs / 32], by the same operator: weights are 1 in one block, else 0. On an
    NPU, where activations are half precision and the operator rounds nothing, as a plain sum."""
    count = inputs // KEPT_BLOCK
    if graph.dtype == np.float16:
        blocks = graph.reshape(x, 1, "rows", count, KEPT_BLOCK)
        return graph.op("ReduceSum", [blocks, graph.integers(-1)], keepdims=0)
    together = math.gcd(count, SUMMED_TOGETHER)
    codes = np.full((together, together, KEPT_BLOCK // 2), ZEROS, np.uint8)
    codes[np.arange(together), np.arange(together)] = ONES
    pieces = graph.reshape(x, 1, f"rows*{count // together}", together * KEPT_BLOCK)
    operands = [pieces, graph.constant(codes), graph.constant(np.ones((together, together), np.float32))]
    return graph.reshape(_product(graph, operands, together * KEPT_BLOCK, together, W4_FORM), 1, "rows", count)


def _kept_stack(pieces: tuple[Float32 | Blocks, ...], arguments: CompileArguments) -> BlockForm:
    """As the file has them; the operator for experts has no room for offsets: those get 8 bits in blocks of 32."""
    held = [piece for piece in pieces if isinstance(piece, Blocks) and piece.offsets is None]
    forms = {(piece.bits, piece.block, piece.zero_points is not None) for piece in held}
    return BlockForm(*forms.pop()) if len(held) == len(pieces) and len(forms) == 1 else BlockForm(8)


# At most eight bits a weight and a float32 scale for each block of 32.
KEEP = Method(
    Quant.KEEP,
    Activations.FLOAT32,
    _store_keep,
    multiply_kept,
    bytes_per_weight=1 + 4 / KEPT_BLOCK,
    has_rows=True,
    stack=_kept_stack,
)


def _store_w4(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    return store_blocks(file, matrix, W4_FORM, lambda piece: as_int4_blocks(piece, matrix.inputs, W4_FORM, True))


# Four bits a weight, a half-precision scale and an offset for each block of 32.
W4 = Method(
    Quant.W4,
    Activations.FLOAT16,
    _store_w4,
    multiply_kept,
    bytes_per_weight=0.5 + 4 / KEPT_BLOCK,
    head=Quant.KEEP,  # four bits of a head lose as much as those of half the layers
    choice=CodeChoice(in_half=True, has_offsets=True),
    wider=Quant.KEEP,
)
