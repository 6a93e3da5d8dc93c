"""The states of the engine as the server sees them, and which may follow which."""

from enum import StrEnum


class EngineState(StrEnum):
    """Where the engine is in its life."""

    LOADING = "loading"  # the first worker has not reported Ready yet
    READY = "ready"
    RESTARTING = "restarting"  # a worker died; requests wait and go on with the next one
    DRAINING = "draining"  # nothing new is taken, what runs may finish
    STOPPED = "stopped"
    DEAD = "dead"  # restarting would not help


LEGAL_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.LOADING: frozenset({EngineState.READY, EngineState.STOPPED, EngineState.DEAD}),
    EngineState.READY: frozenset({EngineState.RESTARTING, EngineState.DRAINING, EngineState.STOPPED, EngineState.DEAD}),
    EngineState.RESTARTING: frozenset({EngineState.READY, EngineState.DRAINING, EngineState.STOPPED, EngineState.DEAD}),
    EngineState.DRAINING: frozenset({EngineState.STOPPED, EngineState.DEAD}),
    EngineState.DEAD: frozenset({EngineState.STOPPED}),
    EngineState.STOPPED: frozenset(),
}


class Lifecycle:
    """Holds the current state; the supervisor is the only one that moves it."""

    def __init__(self) -> None:
        self.state = EngineState.LOADING

    def move(self, target: EngineState) -> None:
        """Go to `target`. A move that the table does not have is a bug of ours."""
        assert target in LEGAL_MOVES[self.state], f"illegal move from {self.state} to {target}"
        self.state = target

    def may(self, target: EngineState) -> bool:
        """True when the table has the move from the current state."""
        return target in LEGAL_MOVES[self.state]
