"""Rotations against their definition, a dense orthogonal matrix."""

import numpy as np
import pytest

from engine.compile.quantisation.transforms.rotation import Rotation

SIZES = (1, 3, 6, 16, 46, 92, 128, 576, 640, 896)
FLAT = (1, 2, 4, 8, 12, 20, 24, 28, 36, 40, 44, 56, 60, 64, 80, 96, 104, 128, 180, 256, 576, 640, 768, 896, 960)


@pytest.mark.parametrize("size", SIZES)
def test_turning_is_the_product_with_an_orthogonal_matrix(size: int) -> None:
    rotation, dense = Rotation.seeded(size, (7, 0)), np.ones((1, 1))
    while len(dense) < size // len(rotation.flat):
        dense = np.kron([[1, 1], [1, -1]], dense)
    dense = rotation.signs[:, None] * np.kron(dense, rotation.flat) / len(dense) ** 0.5
    assert np.allclose(dense @ dense.T, np.eye(size), atol=1e-9)
    vectors = np.random.default_rng(0).standard_normal((3, 2 * size))
    blocks = vectors.reshape(3, 2, size) @ dense
    assert np.allclose(rotation.turn(vectors), blocks.reshape(3, -1), atol=1e-9)


@pytest.mark.parametrize("size", {*SIZES, *FLAT})
def test_a_large_channel_is_spread_over_all(size: int) -> None:
    turned = np.abs(Rotation.seeded(size, (7, 0)).turn(np.eye(size)))
    assert turned.max() <= (2 / size) ** 0.5 + 1e-12
    assert size not in FLAT or np.allclose(turned, size**-0.5)


def test_a_seed_gives_one_rotation() -> None:
    first, again, other = (Rotation.seeded(46, (seed, 2)).turn(np.eye(46)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)
