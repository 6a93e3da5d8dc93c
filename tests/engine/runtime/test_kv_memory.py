"""Memory of finished sequences: float16 in the front of where they lie, the rest given back."""

import sys

import numpy as np
import psutil
import pytest

from engine.bundle.model_spec import CacheGroup
from engine.runtime.kv_memory import LARGE, GroupColumns

KEPT, COLUMNS = 1000, 4096


def group(layers: int, columns: int) -> GroupColumns:
    """Keys and values that differ, with nothing but infinity behind what is kept."""
    made = GroupColumns(CacheGroup(tuple(range(layers)), 0, 2, 64), "float32", columns)
    for seed, side in enumerate((made.keys, made.values)):
        side[...] = np.random.default_rng(seed).standard_normal(side.shape)
        side[..., KEPT:, :] = np.inf
    return made


@pytest.mark.parametrize(("layers", "columns"), [(1, 1001), (4, COLUMNS)], ids=["small", "large"])
def test_the_first_columns_are_kept_as_float16(layers: int, columns: int) -> None:
    made = group(layers, columns)
    before = made.keys, made.values
    expected = [side[..., :KEPT, :].astype(np.float16) for side in before]
    made.narrow(KEPT)
    for old, new, wanted in zip(before, (made.keys, made.values), expected, strict=True):
        assert new.dtype == np.float16
        np.testing.assert_array_equal(new, wanted)
        assert np.shares_memory(old, new) == (old.nbytes >= LARGE and sys.platform == "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is given back")
def test_what_is_not_kept_is_given_back() -> None:
    made = group(4, COLUMNS)
    process, whole = psutil.Process(), made.keys.nbytes + made.values.nbytes
    before = process.memory_info().rss
    made.narrow(KEPT)
    assert before - process.memory_info().rss >= 0.8 * (whole - made.keys.nbytes - made.values.nbytes)
