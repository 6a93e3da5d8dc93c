"""The numbers of a text from those of its rows."""

import numpy as np
import pytest

from engine.bundle.specs import PoolingKind
from engine.runtime.encoder import pooled

HIDDEN = np.array([[1, 10, 0], [2, 20, 0], [6, 30, 0.3]], np.float32)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [(PoolingKind.MEAN, [3, 20, 0.1]), (PoolingKind.CLS, [1, 10, 0]), (PoolingKind.LAST, [6, 30, 0.3])],
)
def test_by_hand(kind: PoolingKind, wanted: list[float]) -> None:
    found = pooled(HIDDEN, kind)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


def test_a_mean_of_many_rows_is_rounded_once() -> None:
    """Summed in float32, a large number would swallow the small ones behind it."""
    rows = np.array([[2.0**24], *[[1.0]] * 4096], np.float32)
    exact = np.float32((2.0**24 + 4096) / 4097)
    assert pooled(rows, PoolingKind.MEAN)[0] == exact
