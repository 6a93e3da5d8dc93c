"""The load of a simulation: its clients, when they come, and the requests they send."""

import random
from dataclasses import dataclass
from itertools import accumulate


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


def starts(clients: int, per_second: float, seed: int) -> tuple[float, ...]:
    """Seconds at which each client comes: a Poisson process of that rate, the same for a seed; at rate 0 all at once.

    More clients begin with the same times as fewer do.
    """
    if per_second == 0:
        return (0.0,) * clients
    source = random.Random(seed)
    return tuple(accumulate(source.expovariate(per_second) for _ in range(clients)))
