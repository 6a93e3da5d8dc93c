"""The load of a simulation: its clients, when they come, and the requests they send."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One request: `number` is unique in a run; lengths in tokens."""

    number: int
    client: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    """A closed loop: each client comes at its time of `starts_s` and sends `requests`, one after the other's end."""

    starts_s: tuple[float, ...]
    requests: int
    prompt: int
    output: int

    def job(self, client: int, turn: int) -> Job:
        """A client's request number `turn`."""
        return Job(client * self.requests + turn, client, self.prompt, self.output)

    @property
    def tokens(self) -> int:
        """Tokens that come out in all."""
        return len(self.starts_s) * self.requests * self.output
