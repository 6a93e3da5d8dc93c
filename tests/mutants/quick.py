"""A pytest plugin: property tests draw the same examples each time, remember none, and do not look for smaller ones."""

from hypothesis import Phase, settings


def pytest_configure() -> None:
    """After tests/conftest.py has chosen its own."""
    only = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", settings(), derandomize=True, database=None, phases=only)
    settings.load_profile("mutants")
