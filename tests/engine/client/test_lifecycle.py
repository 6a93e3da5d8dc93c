"""The table of states."""

from engine.client.info import LEGAL_MOVES, EngineState


def test_every_state_has_a_row_and_every_state_can_be_stopped() -> None:
    assert set(LEGAL_MOVES) == set(EngineState)
    assert all(EngineState.STOPPED in LEGAL_MOVES[state] for state in EngineState if state is not EngineState.STOPPED)
    assert LEGAL_MOVES[EngineState.STOPPED] == frozenset()
