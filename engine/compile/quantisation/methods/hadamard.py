"""Rotations of runs of inputs: H H = 1, so (x H) (w H)ᵀ = x wᵀ. What one input has of its size all of its run share
then, and rounding them together loses less (QuaRot, Ashkboos et al. 2024)."""

import numpy as np

from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.quantisation.methods.blocks import Float32

OF_BLOCKS, OF_ROWS = 32, 128  # inputs of a run: where blocks have a scale, and where whole rows have


def hadamard(run: int) -> Float32:
    """H [run, run], Sylvester's Hadamard matrix over the root of `run`, a power of 2."""
    matrix = np.ones((1, 1))
    while len(matrix) < run:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(run), np.float32)


def rotated(weight: Float32, run: int) -> Float32:
    """Rows [some, inputs], a multiple of `run`."""
    runs = weight.reshape(len(weight), -1, run)  # a row each: products of threads that wait for each other are slow
    return np.asarray(runs @ hadamard(run), np.float32).reshape(weight.shape)


def rotate(graph: GraphBuilder, x: str, inputs: int, run: int) -> str:
    """x [batch, rows, inputs], once for all that multiply with it."""

    def write() -> str:
        runs = graph.op("Reshape", [x, graph.integers(0, -1, run)])
        product = graph.op("MatMul", [runs, graph.constant(hadamard(run))])
        return graph.op("Reshape", [product, graph.integers(0, -1, inputs)])

    return graph.once(f"{x}_rotated_{run}", write)
