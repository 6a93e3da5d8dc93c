"""Rotations of inputs: for an orthogonal R is (x R) (w R)ᵀ = x wᵀ. What one input has of its size many share
then, and rounding them together loses less (QuaRot, Ashkboos et al. 2024)."""

import math

import numpy as np

from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.quantisation.methods.blocks import Float32, Float64

RUN = 32  # inputs that are rotated together where blocks have a scale
LARGEST = 1024  # of the matrices that are built for an odd factor


def paley(order: int) -> Float64 | None:
    """[order, order] of 1 and -1 with orthogonal rows, for a prime + 1 where the prime leaves 3 when divided by 4, and
    for 2 prime + 2 where it leaves 1; None for others."""
    for prime, rest in ((order - 1, 3), (order // 2 - 1, 1)):
        if prime % 4 != rest or prime < 2 or not all(prime % divisor for divisor in range(2, math.isqrt(prime) + 1)):
            continue
        places, is_square = np.arange(prime), np.full(prime, -1.0)
        is_square[places**2 % prime] = 1
        is_square[0] = 0
        matrix = np.zeros((prime + 1, prime + 1))
        matrix[0, 1:], matrix[1:, 0] = 1, 1 if rest == 1 else -1
        matrix[1:, 1:] = is_square[(places[:, None] - places) % prime]
        if rest == 3:
            return matrix + np.eye(len(matrix))
        return np.kron(matrix, [[1, 1], [1, -1]]) + np.kron(np.eye(len(matrix)), [[1, -1], [-1, -1]])
    return None


def flattest(size: int) -> Float64:
    """[m, m], orthogonal, size / m a power of two: Paley's, all of whose entries are equally large, of the least
    multiple of 4 times the odd factor; where there is none Hartley's of that factor, cos + sin of 2 pi i j / m."""
    odd = size // (size & -size)
    order = 4 * odd
    while odd > 1 and size % order == 0 and order <= LARGEST:
        if (matrix := paley(order)) is not None:
            return matrix / math.sqrt(order)
        order *= 2
    angles = 2 * np.pi * np.outer(range(odd), range(odd)) / odd
    return np.asarray((np.cos(angles) + np.sin(angles)) / math.sqrt(odd))


def hadamard(run: int) -> Float32:
    """H [run, run], Sylvester's Hadamard matrix over the root of `run`, a power of 2."""
    matrix = np.ones((1, 1))
    while len(matrix) < run:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(run), np.float32)


def rotated_runs(weight: Float32) -> Float32:
    """Rows [some, inputs], a multiple of `RUN`; each run by itself."""
    runs = weight.reshape(len(weight), -1, RUN)  # a row each: products of threads that wait for each other are slow
    return np.asarray(runs @ hadamard(RUN), np.float32).reshape(weight.shape)


def rotate_runs(graph: GraphBuilder, x: str, inputs: int) -> str:
    """x [1, rows, inputs] as `rotated_runs`, once for all that multiply with it."""

    def write() -> str:
        runs = graph.op("Reshape", [x, graph.integers(0, -1, RUN)])
        product = graph.op("MatMul", [runs, graph.constant(hadamard(RUN))])
        return graph.op("Reshape", [product, graph.integers(0, -1, inputs)])

    return graph.once(f"{x}_runs_rotated", write)


def row_rotation(size: int) -> tuple[Float32, Float32]:
    """L [l, l], R [r, r], l r = `size`: L x R turns all of a row x [l, r]. Of the fewest products that there are; signs
    that are the same for the same size keep numbers with one sign from adding up in one place."""
    flat = flattest(size)
    power = size // len(flat)
    rows = min((1 << bit for bit in range(power.bit_length())), key=lambda rows: rows + size // rows)
    signs = np.random.default_rng(size).choice(np.array([-1.0, 1.0]), rows + size // rows)
    right = np.kron(hadamard(power // rows), flat) * signs[rows:, None]
    return np.asarray(hadamard(rows) * signs[:rows], np.float32), np.asarray(right, np.float32)


def rotated_rows(weight: Float32) -> Float32:
    """Rows [some, inputs]; all of a row together, where one scale is for all of it."""
    left, right = row_rotation(weight.shape[1])
    return np.asarray(left @ (weight.reshape(-1, len(left), len(right)) @ right), np.float32).reshape(weight.shape)


def rotate_rows(graph: GraphBuilder, x: str, inputs: int) -> str:
    """x [1, rows, inputs] as `rotated_rows`, once for all that multiply with it."""

    def write() -> str:
        left, right = row_rotation(inputs)
        square = graph.op("Reshape", [x, graph.integers(-1, len(left), len(right))])
        square = graph.op("MatMul", [graph.constant(left), square])
        lines = graph.op("Reshape", [square, graph.integers(1, -1, len(right))])
        return graph.op("Reshape", [graph.op("MatMul", [lines, graph.constant(right)]), graph.integers(1, -1, inputs)])

    return graph.once(f"{x}_rotated", write)
