"""What a method of quantisation is: facts, how a matrix is written, how a graph multiplies.

And fp32 and fp16: matrices as they are; the weight files of half-precision graphs round every float to float16.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, Float32
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile


class Activations(Enum):
    """What flows between the operators of a graph."""

    FLOAT32 = "float32"  # CPU only, any shape
    FLOAT16 = "float16"  # NPU only
    INTEGER = "integer"  # calibrated 16-bit activations and an 8-bit KV cache; fixed shapes only


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """A matrix [outputs, inputs] as the checkpoint has it. slices: runs of its rows, in order, to be read once. kept:
    the same runs, to be read instead, where those that are stored as blocks come as such. form: of all of them, None =
    they differ, or some are floats. parts: matrices of as many outputs that it stacks and that are multiplied apart.
    is_robust: as rows of 8 bits it loses little, too."""

    name: str
    outputs: int
    inputs: int
    slices: Iterator[Float32]
    kept: Iterator[Float32 | Blocks] | None = None
    form: BlockForm | None = None
    parts: int = 1
    is_robust: bool = False

    @property
    def in_order(self) -> "Iterator[Float32 | Blocks]":
        """The runs to be read where inputs stand in their own order: blocks if they do."""
        return self.slices if self.kept is None or (self.form is not None and self.form.order) else self.kept


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix as it lies in the weight file; the layout is its method's. block: inputs that share a scale, 0 = all.
    bits: of a code in blocks. offsets: [outputs, blocks], what is added to every weight of a block. order: [inputs],
    which input each column belongs to, None = the one of its number. is_rotated: as `BlockForm` has it."""

    inputs: int
    outputs: int
    weight: StoredTensor
    scales: StoredTensor | None = None
    zero_points: StoredTensor | None = None
    block: int = 0
    bits: int = 4
    offsets: StoredTensor | None = None
    order: StoredTensor | None = None
    is_rotated: bool = False

    def halves(self) -> "tuple[StoredMatrix, StoredMatrix]":
        """The first and the last half of the outputs, of a matrix whose tensors have outputs as first axis."""
        names = ("weight", "scales", "zero_points", "offsets")
        parts = {name: part for name in names if (part := getattr(self, name)) is not None}
        halves = [{name: part.part(index, 2) for name, part in parts.items()} for index in (0, 1)]
        first, last = (replace(self, outputs=self.outputs // 2, **half) for half in halves)
        return first, last


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """What may be chosen of the blocks that a method stores: codes, scales, and zero points if it has such.
    has_multiples: scales are 1 to 16 units of their output. in_half: they are stored in half precision. has_offsets: a
    number is added to all weights of a block. has_rows: instead of blocks of 4 bits there are rows of 8."""

    has_multiples: bool = False
    in_half: bool = False
    has_offsets: bool = False
    has_rows: bool = False


Pieces = tuple[Float32 | Blocks, ...]  # of an expert: gate and up, or down; blocks of 32 where the file has such


@dataclass(frozen=True, slots=True)
class Method:
    """One way to store the matrices of linear layers and to multiply with them.

    store(file, matrix, arguments): append the matrix to the file; CompileError when it has no such form.
    multiply(graph, x [1, rows, inputs], matrix): the product [1, rows, outputs], without a bias.
    bytes_per_weight: with scales; tells where the layers are cut into context binaries.
    embedding_bits: of the embedding table unless --embedding says otherwise. head: the LM head's method unless --head
    does, None = this one. is_exact: nothing is rounded. has_integer_blocks: the NPU's compiler is asked to multiply
    4-bit blocks as integers; without that it goes through half precision.
    choice: what --quality has to choose, None = nothing. wider: the method with 8 bits for matrices that 4 do not
    suffice, None = there are none. has_rows: `StoredMatrix.halves` can be multiplied with. takes_block: --block and
    --asymmetric are for it. stack(pieces, arguments): the form of experts, one of which has these pieces (block 0:
    floats); None = there is none."""

    quant: Quant
    activations: Activations
    store: Callable[[WeightFile, FloatMatrix, CompileArguments], StoredMatrix]
    multiply: Callable[[GraphBuilder, str, StoredMatrix], str]
    bytes_per_weight: float
    embedding_bits: int = 16
    head: Quant | None = None
    is_exact: bool = False
    has_integer_blocks: bool = False
    choice: CodeChoice | None = None
    wider: Quant | None = None
    has_rows: bool = False
    takes_block: bool = False
    stack: Callable[[Pieces, CompileArguments], BlockForm] | None = None


def store_floats(file: WeightFile, matrix: FloatMatrix, arguments: CompileArguments) -> StoredMatrix:
    """[inputs, outputs], as MatMul reads it: the whole matrix is turned in memory before it is written."""
    turned, row = np.empty((matrix.inputs, matrix.outputs), np.float32), 0
    for piece in matrix.slices:
        turned[:, row : row + len(piece)] = piece.T
        row += len(piece)
    return StoredMatrix(matrix.inputs, matrix.outputs, file.add(f"{matrix.name}_weight", turned))


def multiply_floats(graph: GraphBuilder, x: str, matrix: StoredMatrix) -> str:
    """A product in the activations' type."""
    return graph.op("MatMul", [x, graph.parameter(matrix.weight)])


FP32 = Method(
    Quant.FP32,
    Activations.FLOAT32,
    store_floats,
    multiply_floats,
    bytes_per_weight=4,
    embedding_bits=32,
    is_exact=True,
    stack=lambda *_: BlockForm(32, block=0),
)
FP16 = Method(Quant.FP16, Activations.FLOAT16, store_floats, multiply_floats, bytes_per_weight=2)
