"""w4: blocks of 4 bits that an NPU multiplies with half-precision activations; those that a file has are kept."""

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.quantization.blocks import Blocks, Int4Blocks
from engine.compile.quantization.int4 import KEPT_BLOCK, floats_of, int4_blocks, is_kept
from engine.compile.quantization.keep import multiply_kept, store_kept
from engine.compile.quantization.method import Activations, CodeChoice, Float32, FloatMatrix, Method, StoredMatrix
from engine.compile.weight_file import WeightFile


def _store(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """In the layout of `Int4Blocks`, with the offsets of blocks that have some (Q4_1, Q4_K)."""

    def as_blocks(piece: Float32 | Blocks) -> Int4Blocks:
        if isinstance(piece, Int4Blocks) and is_kept(piece, KEPT_BLOCK, asymmetric=False, has_offsets=True):
            return piece
        return int4_blocks(floats_of(piece, matrix.inputs), KEPT_BLOCK, asymmetric=False)

    return store_kept(file, matrix, as_blocks)


# Four bits a weight and a half-precision scale for each block of 32, perhaps an offset as well.
W4 = Method(
    Quant.W4,
    Activations.FLOAT16,
    _store,
    multiply_kept,
    bytes_per_weight=0.5 + 2 / KEPT_BLOCK,
    head=Quant.KEEP,  # four bits of a head lose as much as those of half the layers
    choice=CodeChoice(in_half=True, has_offsets=True),
)
