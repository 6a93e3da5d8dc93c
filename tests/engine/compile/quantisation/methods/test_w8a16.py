"""8-bit weights of integer graphs against their definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.compile.quantisation.methods.integer_graphs import int8_outputs

MATRICES = hnp.arrays(np.float32, (5, 64), elements=st.floats(-4, 4, width=32))


@given(MATRICES)
def test_eight_bits_lose_half_a_step_at_most(weight: np.ndarray) -> None:
    integers, scales = int8_outputs(weight)
    assert (np.abs(integers * scales[:, None] - weight) <= scales[:, None] * 0.5001).all()
