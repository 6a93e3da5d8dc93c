"""8-bit weights of integer graphs against their definition."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.compile.arguments import CompileArguments
from engine.compile.quantisation.methods.integer_graphs import FINEST_SHARE, W8A16, int8_outputs, without_finest
from engine.compile.quantisation.methods.method import FloatMatrix
from engine.compile.quantisation.rounding.codes import rounded_rows
from engine.compile.quantisation.weight_file import WeightFile

MATRICES = hnp.arrays(np.float32, (5, 64), elements=st.floats(-4, 4, width=32))


@given(MATRICES)
def test_eight_bits_lose_half_a_step_at_most(weight: np.ndarray) -> None:
    integers, scales = int8_outputs(weight)
    assert (np.abs(integers * scales[:, None] - weight) <= scales[:, None] * 0.5001).all()


def test_no_output_has_a_scale_that_the_npu_takes_for_none() -> None:
    weight = np.random.default_rng(2).uniform(-1, 1, (6, 64)).astype(np.float32)
    weight *= np.array([1, 2, 1e-2, 1e-5, 1e-9, 0], np.float32)[:, None]
    before = int8_outputs(weight)
    integers, scales = without_finest(*before)
    assert (scales[:5] >= before[1][:2].max() * FINEST_SHARE * 0.999).all()
    for old, new in zip(before, (integers, scales), strict=True):
        np.testing.assert_array_equal(new[[0, 1, 2, 5]], old[[0, 1, 2, 5]])
    assert (np.abs(integers * scales[:, None] - weight) <= scales[:, None] * 1.01).all()
    blocks = np.repeat(before[1][:, None], 2, axis=1)
    np.testing.assert_array_equal(without_finest(before[0], blocks)[1], np.repeat(scales[:, None], 2, axis=1))


def test_rows_that_come_in_this_form_are_kept(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    codes = rounded_rows(weight)
    codes.codes[2, 0, 7] -= 3  # as no rounding to nearest leaves it
    with WeightFile(tmp_path, "weights.data") as file:
        matrix = FloatMatrix("m", 5, 64, iter([weight]), iter([codes.blocks()]))
        stored = W8A16.store(file, matrix, CompileArguments(Path(), Path()))
    content = (tmp_path / "weights.data").read_bytes()
    start = stored.weight.offset
    found = np.frombuffer(content[start : start + stored.weight.length], np.int8).reshape(64, 5)
    assert np.array_equal(found.T, codes.integers())
    assert np.array_equal(codes.integers() * codes.grid.scales, codes.floats())
