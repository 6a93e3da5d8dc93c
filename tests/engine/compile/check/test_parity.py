"""No limit is passed by what is no number."""

import numpy as np
import pytest

from engine.compile.check.parity import compare_logits
from engine.errors import CompileError

SOUND = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_neither_side_may_have_one(bad: float) -> None:
    broken = SOUND.copy()
    broken[1, 1] = bad
    with pytest.raises(CompileError, match="the checkpoint itself gives logits that are not finite"):
        compare_logits(broken, SOUND)
    with pytest.raises(CompileError, match="the compiled graphs gave logits that are not finite"):
        compare_logits(SOUND, broken)


def test_figures_are_finite() -> None:
    zeros = np.zeros_like(SOUND)
    assert compare_logits(zeros, zeros).relative_error == 0.0
    huge = np.full_like(SOUND, np.finfo(np.float32).max)
    with pytest.raises(CompileError, match="no finite figures"):
        compare_logits(huge, -huge)
