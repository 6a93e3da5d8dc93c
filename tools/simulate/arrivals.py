"""When clients come."""

import random
from itertools import accumulate


def starts(clients: int, per_second: float, seed: int) -> tuple[float, ...]:
    """Seconds at which each client comes: a Poisson process of that rate, the same for a seed; at rate 0 all at once.

    More clients begin with the same times as fewer do.
    """
    if per_second == 0:
        return (0.0,) * clients
    source = random.Random(seed)
    return tuple(accumulate(source.expovariate(per_second) for _ in range(clients)))
