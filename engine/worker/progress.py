"""How far the loop is, for the thread that answers the parent's pings. Costs a pass one small object and no message."""

from engine.messages import Heartbeat


class Progress:
    """Written by the loop's thread, read by another one: every write replaces the whole heartbeat."""

    def __init__(self) -> None:
        self.heartbeat = Heartbeat(is_busy=False, passes=0, expected_ms=0.0)

    def begin(self, expected_ms: float) -> None:
        """A pass begins that should take `expected_ms`, 0 = not known; also called for work before the first pass."""
        self.heartbeat = Heartbeat(True, self.heartbeat.passes + 1, expected_ms)

    def rest(self) -> None:
        """There is nothing to do."""
        self.heartbeat = Heartbeat(False, self.heartbeat.passes, 0.0)
