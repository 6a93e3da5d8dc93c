"""Hadamard matrices: H of n x n holds only 1 and -1, and H Hᵀ = n. By Sylvester's and Paley's constructions."""

import math

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Signs = NDArray[np.int8]
DENSE = 64  # a power of two is cut into factors no larger: their product takes far fewer steps than one matrix
LARGEST = 1024  # of the matrices that are built whole for an odd factor


def sylvester(size: int) -> Signs:
    """[size, size] for a power of two."""
    matrix = np.ones((1, 1), np.int8)
    while len(matrix) < size:
        matrix = np.kron(np.array([[1, 1], [1, -1]], np.int8), matrix)
    return matrix


def paley(size: int) -> Signs | None:
    """[size, size] where size - 1 (first kind) or size / 2 - 1 (second kind) is a fitting prime, else None."""
    if size % 4:
        return None
    if _is_prime(size - 1):
        return _first_kind(size - 1)
    half = size // 2 - 1
    return _second_kind(half) if half % 4 == 1 and _is_prime(half) else None


def hadamard_factors(size: int) -> tuple[Signs, ...] | None:
    """Hadamard matrices whose Kronecker product is one of [size, size]; None when no construction here gives it."""
    odd = size // _power_of_two(size)
    if odd == 1:
        return _sylvester_factors(size)
    order = 4 * odd
    while size % order == 0 and order <= LARGEST:
        matrix = paley(order)
        if matrix is not None:
            return (*_sylvester_factors(size // order), matrix)
        order *= 2
    return None


def orthogonal_factors(size: int, generator: np.random.Generator) -> tuple[Float64, ...]:
    """Orthogonal matrices whose Kronecker product is [size, size]: Hadamard, or a random one for the odd factor."""
    signs = hadamard_factors(size)
    if signs is not None:
        return tuple(_normalised(matrix) for matrix in signs)
    power = _power_of_two(size)
    return (*map(_normalised, _sylvester_factors(power)), random_orthogonal(size // power, generator))


def random_orthogonal(size: int, generator: np.random.Generator) -> Float64:
    """[size, size], uniform among all: the signs of R's diagonal are what QR leaves open."""
    q, r = np.linalg.qr(generator.standard_normal((size, size)))
    return np.asarray(q * np.sign(np.diag(r)), np.float64)


def _normalised(matrix: Signs) -> Float64:
    return matrix.astype(np.float64) / math.sqrt(len(matrix))


def _sylvester_factors(size: int) -> tuple[Signs, ...]:
    factors = []
    while size > 1:
        factors.append(sylvester(min(size, DENSE)))
        size //= len(factors[-1])
    return tuple(factors)


def _power_of_two(size: int) -> int:
    """The largest that divides size."""
    return size & -size


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _jacobsthal(prime: int) -> Signs:
    """[prime, prime] with entry (i, j) 1 where i - j is a square modulo the prime, -1 where it is none, 0 for i = j."""
    character = np.full(prime, -1, np.int8)
    character[np.arange(1, prime) ** 2 % prime] = 1
    character[0] = 0
    indices = np.arange(prime)
    return np.asarray(character[(indices[:, None] - indices) % prime], np.int8)


def _first_kind(prime: int) -> Signs:
    """Of prime + 1 rows, for a prime that leaves 3 when divided by 4."""
    skew = np.zeros((prime + 1, prime + 1), np.int8)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = _jacobsthal(prime)
    return skew + np.eye(prime + 1, dtype=np.int8)


def _second_kind(prime: int) -> Signs:
    """Of 2 prime + 2 rows, for a prime that leaves 1 when divided by 4."""
    symmetric = np.zeros((prime + 1, prime + 1), np.int8)
    symmetric[0, 1:] = symmetric[1:, 0] = 1
    symmetric[1:, 1:] = _jacobsthal(prime)
    diagonal = np.eye(prime + 1, dtype=np.int8)
    off, on = np.array([[1, 1], [1, -1]], np.int8), np.array([[1, -1], [-1, -1]], np.int8)
    return np.asarray(np.kron(symmetric, off) + np.kron(diagonal, on), np.int8)
