"""Codes come back from disk as they were written."""

from pathlib import Path

import numpy as np
import pytest

from engine.compile.quantisation.choose.choose import CodesFolder
from engine.compile.quantisation.methods.blocks import BlockForm
from engine.compile.quantisation.rounding.codes import BlockCodes, Coding, extreme_scales, rounded, rounded_rows


def random_codes(outputs: int, inputs: int, block: int = 32, coding: Coding = Coding.SYMMETRIC) -> BlockCodes:
    weight = np.random.default_rng(outputs * inputs).standard_normal((outputs, inputs)).astype(np.float32)
    return rounded(weight, extreme_scales(weight, block, coding))


def assert_same(found: BlockCodes, expected: BlockCodes) -> None:
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.grid.scales, expected.grid.scales)
    assert (found.grid.block, found.inputs, found.bits) == (expected.grid.block, expected.inputs, expected.bits)
    assert (found.grid.zeros is None) == (expected.grid.zeros is None)
    if found.grid.zeros is not None:
        assert np.array_equal(found.grid.zeros, expected.grid.zeros)


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize(("inputs", "block"), [(96, 32), (200, 128)])
def test_matrices_come_back(coding: Coding, inputs: int, block: int, tmp_path: Path) -> None:
    codes, first, second = CodesFolder(tmp_path), *(random_codes(rows, inputs, block, coding) for rows in (7, 5))
    codes.append("first", first)
    codes.append("second", second)
    assert list(codes.layouts) == ["first", "second"]
    assert_same(codes.read("first"), first)
    assert_same(codes.read("second"), second)


@pytest.mark.parametrize("coding", Coding)
def test_rows_may_come_in_runs_and_be_read_in_others(coding: Coding, tmp_path: Path) -> None:
    codes, runs = CodesFolder(tmp_path), [random_codes(rows, 96, 32, coding) for rows in (4, 1, 6)]
    for run in runs:
        codes.append("head", run)
    whole = np.concatenate([run.floats() for run in runs])
    assert np.array_equal(codes.read("head").floats(), whole)
    assert np.array_equal(codes.read("head", 3, 7).floats(), whole[3:7])


def test_rows_of_8_bits_come_back(tmp_path: Path) -> None:
    codes, weight = CodesFolder(tmp_path), np.random.default_rng(3).standard_normal((9, 72)).astype(np.float32)
    codes.append("a", rounded_rows(weight[:4]))
    codes.append("a", rounded_rows(weight[4:]))
    assert_same(codes.read("a"), rounded_rows(weight))
    assert codes.form("a") == BlockForm(8, 72)


def test_rows_of_another_form_are_refused(tmp_path: Path) -> None:
    codes = CodesFolder(tmp_path)
    codes.append("a", random_codes(4, 128))
    with pytest.raises(ValueError, match="another form"):
        codes.append("a", random_codes(4, 128, 128))


def test_what_was_never_written_is_not_there(tmp_path: Path) -> None:
    codes = CodesFolder(tmp_path)
    assert "a" not in codes.layouts
    with pytest.raises(KeyError):
        codes.read("a", 0, 1)
