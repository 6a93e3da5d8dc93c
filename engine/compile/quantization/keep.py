"""keep: blocks of 32 that a file has stay what they are; everything else becomes blocks of 8 bits, hardly rounded."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx

from engine.compile.ahead import ahead
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantization.blocks import Blocks, Bytes, Int4Blocks
from engine.compile.quantization.int4 import KEPT_BLOCK, multiply_blocks
from engine.compile.quantization.int8 import store_int8
from engine.compile.quantization.method import Activations, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.weight_file import WeightFile

ZEROS, ONES = 0x88, 0x99  # two codes of 4 bits around 8


def _store(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """In the layout of `Int4Blocks` where all of the matrix comes so, else in that of `Int8Blocks`."""
    return store_kept(file, matrix, _kept) if matrix.is_four_bit else store_int8(file, matrix, arguments)


def _kept(piece: Float32 | Blocks) -> Int4Blocks:
    assert isinstance(piece, Int4Blocks)
    return piece


def store_kept(
    file: WeightFile, matrix: FloatMatrix, as_blocks: Callable[[Float32 | Blocks], Int4Blocks]
) -> StoredMatrix:
    """Slice by slice in the layout of `Int4Blocks`, and what is added to each weight of a block, if anything is."""
    scales: list[Float32] = []
    offsets: list[Float32] = []

    def packed() -> Iterator[Bytes]:
        for blocks in ahead(as_blocks, matrix.slices if matrix.kept is None else matrix.kept):
            scales.append(blocks.scales)
            offsets.append(np.zeros_like(blocks.scales) if blocks.offsets is None else blocks.offsets)
            yield blocks.packed

    dims = (matrix.outputs, -(-matrix.inputs // KEPT_BLOCK), KEPT_BLOCK // 2)
    weight = file.add_chunks(f"{matrix.name}_weight", onnx.TensorProto.UINT8, dims, packed())
    stored_scales = file.add(f"{matrix.name}_scales", np.concatenate(scales))
    added = np.ascontiguousarray(np.concatenate(offsets).T) if any(map(np.any, offsets)) else None
    stored_offsets = None if added is None else file.add(f"{matrix.name}_offsets", added)
    sizes = matrix.inputs, matrix.outputs
    return StoredMatrix(*sizes, weight, stored_scales, block=KEPT_BLOCK, offsets=stored_offsets)


def multiply_kept(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """The operator adds nothing to weights, so a block's offset is multiplied with the sum of its inputs.

    Of its inputs as the operator has rounded them: what rounding loses is then a matter of whole weights, which are
    smaller than what they are without the offset.
    """
    product = multiply_blocks(graph, x, matrix)
    if matrix.offsets is None:
        return product
    sums = graph.once(f"{x}_block_sums", lambda: _block_sums(graph, x, matrix.inputs))
    return graph.op("Add", [product, graph.op("MatMul", [sums, graph.stored(matrix.offsets)])])


def _block_sums(graph: GraphBuilder, x: str, inputs: int) -> str:
    """x [1, rows, inputs] -> [1, rows, inputs / 32], by the same operator: weights are 1 in one block, else 0.

    On an NPU, where activations are half precision and the operator rounds nothing, as a plain sum.
    """
    count = inputs // KEPT_BLOCK
    if graph.dtype == np.float16:
        blocks = graph.reshape(x, 1, "rows", count, KEPT_BLOCK)
        return graph.op("ReduceSum", [blocks, graph.integers(-1)], keepdims=0)
    codes = np.full((count, count, KEPT_BLOCK // 2), ZEROS, np.uint8)
    codes[np.arange(count), np.arange(count)] = ONES
    ones = graph.constant(np.ones((count, count), np.float32))
    return graph.op(
        "MatMulNBits",
        [x, graph.constant(codes), ones],
        domain=CONTRIB,
        K=inputs,
        N=count,
        bits=4,
        block_size=KEPT_BLOCK,
        accuracy_level=4,
    )


# At most eight bits a weight and a float32 scale for each block of 32.
KEEP = Method(Quant.KEEP, Activations.FLOAT32, _store, multiply_kept, bytes_per_weight=1 + 4 / KEPT_BLOCK)
