"""The table of states."""

import itertools

import pytest

from engine.client.info import LEGAL_MOVES, EngineState, Lifecycle


def test_every_state_has_a_row_and_every_state_can_be_stopped() -> None:
    assert set(LEGAL_MOVES) == set(EngineState)
    assert all(EngineState.STOPPED in LEGAL_MOVES[state] for state in EngineState if state is not EngineState.STOPPED)
    assert LEGAL_MOVES[EngineState.STOPPED] == frozenset()


@pytest.mark.parametrize(("source", "target"), list(itertools.product(EngineState, EngineState)))
def test_only_moves_in_the_table_are_made(source: EngineState, target: EngineState) -> None:
    lifecycle = Lifecycle()
    lifecycle.state = source
    assert lifecycle.may(target) == (target in LEGAL_MOVES[source])
    if lifecycle.may(target):
        lifecycle.move(target)
        assert lifecycle.state is target
    else:
        with pytest.raises(AssertionError):
            lifecycle.move(target)
