"""keep and w4: blocks that a file has stay what they are. Others become blocks of 8 bits, or of 4 for an NPU."""

import math

import numpy as np

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.methods.blocks import KEPT_BLOCK, BlockForm, Blocks
from engine.compile.quantisation.methods.integer_blocks import (
    floats_of,
    int8_stack,
    kept_form,
    multiply_blocks,
    store_blocks,
    store_int8,
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
)
from engine.compile.quantisation.rounding.codes import Coding, extreme_scales, rounded
from engine.compile.quantisation.weight_file import WeightFile

W4_FORM = BlockForm(4)
ZEROS, ONES = 0x88, 0x99  # two codes of 4 bits around 8
SUMMED_TOGETHER = 8  # blocks in a product of few rows; with all of a row most of the work is zeros


def _store_keep(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """In the form in which all of the matrix comes, else in 8 bits."""
    form = matrix.form
    return store_int8(file, matrix, arguments) if form is None else store_blocks(file, matrix, form, _kept)


def _kept(piece: Float32 | Blocks) -> Blocks:
    assert not isinstance(piece, np.ndarray)
    return piece


def multiply_kept(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """The operator adds nothing to weights, so a block's offset is multiplied with the sum of its inputs.

    Of its inputs as the operator has rounded them: what rounding loses is then a matter of whole weights, which are
    smaller than what they are without the offset.
    """
    if matrix.order is not None:
        x = graph.op("Gather", [x, graph.stored(matrix.order)], axis=2)
    product = multiply_blocks(graph, x, matrix)
    if matrix.offsets is None:
        return product
    sums = graph.once(f"{x}_block_sums", lambda: _block_sums(graph, x, matrix.inputs))
    return graph.op("Add", [product, _times_offsets(graph, sums, graph.parameter(matrix.offsets))])


def _times_offsets(graph: GraphBuilder, sums: str, offsets: str) -> str:
    """sums [1, rows, blocks], offsets [outputs, blocks] -> [1, rows, outputs]."""
    if graph.dtype == np.float16:
        return graph.op("MatMul", [sums, graph.op("Transpose", [offsets], perm=[1, 0])])
    return graph.op("FusedMatMul", [sums, offsets], domain=CONTRIB, transB=1)


def _block_sums(graph: GraphBuilder, x: str, inputs: int) -> str:
    """x [1, rows, inputs] -> [1, rows, inputs / 32], by the same operator: weights are 1 in one block, else 0.

    On an NPU, where activations are half precision and the operator rounds nothing, as a plain sum.
    """
    count = inputs // KEPT_BLOCK
    if graph.dtype == np.float16:
        blocks = graph.reshape(x, 1, "rows", count, KEPT_BLOCK)
        return graph.op("ReduceSum", [blocks, graph.integers(-1)], keepdims=0)
    together = math.gcd(count, SUMMED_TOGETHER)
    codes = np.full((together, together, KEPT_BLOCK // 2), ZEROS, np.uint8)
    codes[np.arange(together), np.arange(together)] = ONES
    pieces = graph.reshape(x, 1, f"rows*{count // together}", together * KEPT_BLOCK)
    sums = graph.op(
        "MatMulNBits",
        [pieces, graph.constant(codes), graph.constant(np.ones((together, together), np.float32))],
        domain=CONTRIB,
        K=together * KEPT_BLOCK,
        N=together,
        bits=4,
        block_size=KEPT_BLOCK,
        accuracy_level=4,
    )
    return graph.reshape(sums, 1, "rows", count)


def _stack(pieces: Pieces, arguments: CompileArguments) -> StackForm:
    """As the file has them; the operator for experts has no room for offsets: those get 8 bits in blocks of 32."""
    held = [piece for piece in pieces if isinstance(piece, Blocks) and piece.offsets is None]
    forms = {(piece.bits, piece.block, piece.zero_points is not None) for piece in held}
    if len(held) == len(pieces) and len(forms) == 1:
        return StackForm(*forms.pop())
    return int8_stack(pieces, arguments)


# At most eight bits a weight and a float32 scale for each block of 32.
KEEP = Method(
    Quant.KEEP,
    Activations.FLOAT32,
    _store_keep,
    multiply_kept,
    bytes_per_weight=1 + 4 / KEPT_BLOCK,
    has_rows=True,
    stack=_stack,
)


def _store_w4(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    return store_blocks(file, matrix, W4_FORM, lambda piece: as_blocks(piece, matrix.inputs))


def as_blocks(piece: Float32 | Blocks, inputs: int) -> Blocks:
    """Rows [some, inputs]: codes of 4 bits as they are, others rounded to nearest."""
    kept = kept_form(piece, inputs, W4_FORM, has_offsets=True)
    if kept is not None:
        return kept
    weight = floats_of(piece, inputs)
    return rounded(weight, extreme_scales(weight, KEPT_BLOCK, Coding.OFFSET)).blocks()


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
