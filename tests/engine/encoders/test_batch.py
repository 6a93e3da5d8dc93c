"""Several texts in the rows of one pass: nobody sees a row of another text."""

import numpy as np
import pytest

from engine.encoders.batch import EncoderText, pack_texts, pair_types


def test_texts_lie_behind_each_other_and_see_themselves_only() -> None:
    batch = pack_texts([EncoderText((7, 8, 9)), EncoderText((5, 6), (0, 1))], 8)
    assert batch.ids.tolist() == [7, 8, 9, 5, 6, 0, 0, 0]
    assert batch.types.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert batch.places.tolist() == [0, 1, 2, 0, 1, 0, 0, 0]
    assert batch.spans == (slice(0, 3), slice(3, 5))
    wanted = np.zeros((8, 8), bool)
    for span in (slice(0, 3), slice(3, 5), slice(5, 8)):
        wanted[span, span] = True
    np.testing.assert_array_equal(batch.visible, wanted)
    assert batch.visible.any(axis=1).all(), "a row that saw nothing would give NaN"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens do not fit 8 rows"):
        pack_texts([EncoderText((1,) * 5), EncoderText((1,) * 4)], 8)


def test_types_change_behind_what_stands_between_two_texts() -> None:
    assert pair_types((1, 5, 5, 2, 6, 2), (2,)) == (0, 0, 0, 0, 1, 1)
    assert pair_types((1, 2, 9, 2, 2, 6), (2, 2)) == (0, 0, 0, 0, 0, 1)
    with pytest.raises(ValueError, match="there is one text"):
        pair_types((1, 5, 6), (2,))
