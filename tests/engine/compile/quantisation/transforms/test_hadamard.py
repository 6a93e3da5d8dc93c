"""Hadamard matrices against their definition, and the fast product against the dense one."""

from functools import reduce

import numpy as np
import pytest

from engine.compile.quantisation.transforms.rotation import Rotation, hadamard_factors, paley, sylvester

BUILT = (1, 2, 4, 8, 12, 20, 24, 28, 36, 40, 44, 56, 60, 64, 80, 96, 104, 128, 180, 256, 768, 896, 960)


@pytest.mark.parametrize("size", BUILT)
def test_rows_are_signs_and_orthogonal(size: int) -> None:
    factors = hadamard_factors(size)
    assert factors is not None
    matrix = reduce(np.kron, factors, np.ones((1, 1), np.int8)).astype(np.int64)
    assert matrix.shape == (size, size)
    assert set(np.unique(matrix)) <= {-1, 1}
    assert np.array_equal(matrix @ matrix.T, size * np.eye(size, dtype=np.int64))


def test_each_construction() -> None:
    assert sylvester(4).tolist() == [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert paley(12) is not None  # of 11, which leaves 3 when divided by 4
    assert paley(28) is not None  # of 13, for 27 is no prime
    assert paley(92) is None
    assert hadamard_factors(3) is None
    assert hadamard_factors(92) is None


@pytest.mark.parametrize("size", [1, 6, 16, 48, 92, 128, 512, 640])
def test_turning_is_the_product_with_an_orthogonal_matrix(size: int) -> None:
    rotation = Rotation.seeded(size, (7, 0))
    dense = rotation.signs[:, None] * reduce(np.kron, rotation.factors, np.ones((1, 1)))
    assert np.allclose(dense @ dense.T, np.eye(size), atol=1e-12)
    vectors = np.random.default_rng(0).standard_normal((3, 2 * size))
    blocks = vectors.reshape(3, 2, size) @ dense
    assert np.allclose(rotation.turn(vectors), blocks.reshape(3, -1), atol=1e-12)


def test_a_large_channel_is_spread_evenly_over_all() -> None:
    turned = Rotation.seeded(640, (7, 0)).turn(np.eye(640))
    assert np.allclose(np.abs(turned), 640**-0.5)


def test_a_seed_gives_one_rotation() -> None:
    first, again, other = (Rotation.seeded(46, (seed, 2)).turn(np.eye(46)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
