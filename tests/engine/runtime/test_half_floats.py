"""Copies between float32 and float16: numpy's bits, whatever lies where."""

import subprocess
import sys

import numpy as np
import pytest

from engine.bundle.segments import FLOAT, HALF
from engine.bundle.tensors import Array
from engine.processes import child_environment
from engine.runtime.half_floats import AT_ONCE, LEAST_NUMBERS, assign

ROWS = 8


def numbers(count: int) -> Array:
    """float32 [1, ROWS, count] of all sizes, those among them that float16 has no number for."""
    drawn = np.random.default_rng(7)
    found = drawn.standard_normal((1, ROWS, count)) * np.exp(drawn.uniform(-40, 12, (1, ROWS, count)))
    found[0, 0, :5] = np.inf, -np.inf, 65519.0, -65520.0, 0.0
    return found.astype(np.float32)


@pytest.mark.parametrize("layers", [1, 3, 16])
@pytest.mark.parametrize("count", [LEAST_NUMBERS // ROWS - 1, LEAST_NUMBERS, AT_ONCE // ROWS + 1])
@pytest.mark.parametrize(("of", "to"), [(FLOAT, HALF), (HALF, FLOAT), (FLOAT, FLOAT), ("int8", "int8")])
def test_bits_are_numpys(layers: int, count: int, of: str, to: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        source = np.repeat(numbers(count), layers, axis=0).astype(of)
        target = np.zeros((layers, ROWS, count + 5), to)
        expected = target.copy()
        expected[..., 2:-3] = source
        assign(target[..., 2:-3], source)
    assert np.array_equal(target.view(np.uint8), expected.view(np.uint8))


def test_where_threads_spin() -> None:
    """Sessions of such a process share them, or there is none."""
    lines = (
        "import numpy as np",
        "from engine.runtime.half_floats import assign",
        "from engine.runtime.sessions import cpu_provider",
        "cpu_provider(2, spins=True)",
        f"assign(target := np.zeros({LEAST_NUMBERS}, np.float16), np.full({LEAST_NUMBERS}, 0.1, np.float32))",
        "assert (target == np.float16(0.1)).all()",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env=child_environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_columns_of_more_are_copied() -> None:
    source = np.repeat(numbers(2 * LEAST_NUMBERS), 2, axis=0)[..., LEAST_NUMBERS : 2 * LEAST_NUMBERS - 1]
    target = np.zeros(source.shape, HALF)
    assign(target, source)
    with np.errstate(over="ignore"):
        assert np.array_equal(target, source.astype(HALF))
