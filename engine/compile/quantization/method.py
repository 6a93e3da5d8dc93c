"""What a method of quantisation is: facts, how a matrix is written, how a graph multiplies with it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graph_builder import GraphBuilder
from engine.compile.quantization.blocks import Blocks
from engine.compile.weight_file import StoredTensor, WeightFile

Float32 = NDArray[np.float32]


class Activations(Enum):
    """What flows between the operators of a graph."""

    FLOAT32 = "float32"  # CPU only, any shape
    FLOAT16 = "float16"  # NPU only
    INTEGER = "integer"  # calibrated 16-bit activations and an 8-bit KV cache; fixed shapes only


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """A matrix [outputs, inputs] as the checkpoint has it. slices: runs of its rows, in order, to be read once.

    kept: the same runs, to be read instead, where those that are blocks of 32 come as such. is_four_bit: all of them
    are blocks of 4 bits.
    """

    name: str
    outputs: int
    inputs: int
    slices: Iterator[Float32]
    kept: Iterator[Float32 | Blocks] | None = None
    is_four_bit: bool = False


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix as it lies in the weight file; the layout is its method's. block: inputs that share a scale, 0 = all.

    bits: of a code in blocks. offsets: [blocks, outputs], what is added to every weight of a block.
    """

    inputs: int
    outputs: int
    weight: StoredTensor
    scales: StoredTensor | None = None
    zero_points: StoredTensor | None = None
    block: int = 0
    bits: int = 4
    offsets: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """What may be chosen of the 4-bit blocks that a method stores: codes, scales, and zero points if it has such.

    has_multiples: scales are 1 to 16 units of their output. in_half: they are stored in half precision. has_offsets:
    blocks that a file has may have something added to all their weights; none is chosen.
    """

    has_multiples: bool = False
    in_half: bool = False
    has_offsets: bool = False


@dataclass(frozen=True, slots=True)
class Method:
    """One way to store the matrices of linear layers and to multiply with them.

    store(file, matrix, arguments): append the matrix to the file; CompileError when it has no such form.
    multiply(graph, x [1, rows, inputs], matrix): the product [1, rows, outputs], without a bias.
    bytes_per_weight: with scales; tells where the layers are cut into context binaries.
    embedding_bits: of the embedding table unless --embedding says otherwise. head: the LM head's method unless --head
    does, None = this one. is_exact: nothing is rounded. has_integer_blocks: the NPU's compiler is asked to multiply
    4-bit blocks as integers; without that it goes through half precision.
    choice: what --quality has to choose, None = nothing.
    """

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
