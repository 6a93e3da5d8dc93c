"""What one sequence carries, by hand: where tokens lie in the layouts of graphs of several shapes."""

import numpy as np
import pytest

from engine.bundle.manifest import TensorSpec
from engine.runtime.serial import CarriedState


def specs(past: int, window: int) -> dict[str, TensorSpec]:
    """Keys and values of a layer that sees everything, and of one with a window; one number for each token."""
    return {
        "past_key_0_in": TensorSpec("past_key_0_in", "float32", (1, 1, 1, past)),
        "past_value_0_in": TensorSpec("past_value_0_in", "float32", (1, 1, past, 1)),
        "swa_key_1_in": TensorSpec("swa_key_1_in", "float32", (1, 1, 1, window)),
        "swa_value_1_in": TensorSpec("swa_value_1_in", "float32", (1, 1, window, 1)),
    }


def held(past: int, window: int, tokens: int) -> CarriedState:
    """After so many tokens, told by their numbers from 1 on."""
    state = CarriedState(specs(past, window))
    for token in range(1, tokens + 1):
        fresh = {name.replace("_in", "_out"): np.full((1, 1, 1, 1), token, np.float32) for name in specs(past, window)}
        state.take(fresh, 1)
    return state


@pytest.mark.parametrize(
    ("past", "window", "there", "seen"),
    [
        (8, 4, [1, 2, 3, 4, 5, 6, 0, 0], [5, 6, 3, 4]),
        (6, 3, [1, 2, 3, 4, 5, 6], [4, 5, 6]),
        (4, 6, [1, 2, 3, 4], [0, 0, 3, 4, 5, 6]),  # what has no column is lost
        (9, 5, [1, 2, 3, 4, 5, 6, 0, 0, 0], [6, 0, 3, 4, 5]),
    ],
)
def test_tokens_have_their_columns_in_every_layout(past: int, window: int, there: list[int], seen: list[int]) -> None:
    """A token's past column is its number, its column of a window that modulo the window's width."""
    state = held(8, 4, 6)
    assert state.fits(specs(past, window)) is ((past, window) == (8, 4))
    state.lay_out(specs(past, window))
    assert state.fits(specs(past, window))
    for name, expected in zip(specs(past, window), (there, there, seen, seen), strict=True):
        assert state.arrays[name].ravel().tolist() == expected, name
