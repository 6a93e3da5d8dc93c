"""Rotations against their definition, a dense orthogonal matrix."""

import numpy as np
import pytest

from engine.compile.quantisation.transforms.rotation import Rotation

SIZES = (1, 3, 6, 16, 46, 128, 576, 640, 896)


@pytest.mark.parametrize("size", SIZES)
def test_turning_is_the_product_with_an_orthogonal_matrix(size: int) -> None:
    rotation, odd = Rotation.seeded(size, (7, 0)), size // (size & -size)
    angles = 2 * np.pi * np.outer(range(odd), range(odd)) / odd
    dense = np.ones((1, 1))
    while len(dense) < size // odd:
        dense = np.kron([[1, 1], [1, -1]], dense)
    dense = rotation.signs[:, None] * np.kron(dense, np.cos(angles) + np.sin(angles)) / np.sqrt(size)
    assert np.allclose(dense @ dense.T, np.eye(size), atol=1e-9)
    vectors = np.random.default_rng(0).standard_normal((3, 2 * size))
    blocks = vectors.reshape(3, 2, size) @ dense
    assert np.allclose(rotation.turn(vectors), blocks.reshape(3, -1), atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_a_large_channel_is_spread_over_all(size: int) -> None:
    turned = Rotation.seeded(size, (7, 0)).turn(np.eye(size))
    assert np.abs(turned).max() <= (2 / size) ** 0.5 + 1e-12
    if size & -size == size:
        assert np.allclose(np.abs(turned), size**-0.5)


def test_a_seed_gives_one_rotation() -> None:
    first, again, other = (Rotation.seeded(46, (seed, 2)).turn(np.eye(46)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
