"""How many requests schemathesis makes up of a route, the same ones each time."""

from hypothesis import HealthCheck, Phase, settings


def made_up(count: int) -> settings:
    """A decorator for a test that is given so many cases."""
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
