"""Several texts in the rows of one step: nobody sees a row of another text."""

import numpy as np
import pytest

from engine.bundle.encoder import pair_types
from engine.runtime.encoder import pack_texts
from tests.engine.fake_runtime import visible


def test_texts_lie_behind_each_other_and_see_themselves_only() -> None:
    batch = pack_texts([(7, 8, 9), (5, 6)], 8)
    assert batch.input_ids.tolist() == [0, 0, 0, 7, 8, 9, 5, 6]
    assert batch.positions.tolist() == [0, 0, 0, 0, 1, 2, 0, 1]
    assert batch.logit_rows.tolist() == [5, 7]
    wanted = np.eye(8, dtype=bool)
    for span in (slice(3, 6), slice(6, 8)):
        wanted[span, span] = True
    np.testing.assert_array_equal(visible(batch), wanted)


def test_what_does_not_fit_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="9 rows do not fit"):
        pack_texts([(1,) * 5, (1,) * 4], 8)


def test_types_change_behind_what_stands_between_two_texts() -> None:
    assert pair_types((1, 5, 5, 2, 6, 2), (2,)) == (0, 0, 0, 0, 1, 1)
    assert pair_types((1, 2, 9, 2, 2, 6), (2, 2)) == (0, 0, 0, 0, 0, 1)
    assert pair_types((1, 5, 6), (2,)) == ()
