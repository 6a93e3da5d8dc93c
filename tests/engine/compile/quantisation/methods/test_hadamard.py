"""What rotates runs of inputs."""

import numpy as np
import pytest

from engine.compile.quantisation.methods.hadamard import hadamard, rotated


@pytest.mark.parametrize("run", [32, 128])
def test_it_is_orthogonal_and_spreads_one_input_evenly(run: int) -> None:
    assert np.allclose(hadamard(run) @ hadamard(run).T, np.eye(run), atol=1e-6)
    assert np.allclose(np.abs(hadamard(run)), run**-0.5)


def test_each_run_of_a_row_is_rotated_for_itself() -> None:
    weight = np.random.default_rng(2).standard_normal((3, 96)).astype(np.float32)
    found = rotated(weight, 32)
    for start in (0, 32, 64):
        run = slice(start, start + 32)
        np.testing.assert_allclose(found[:, run], weight[:, run] @ hadamard(32), rtol=1e-5, atol=1e-6)
