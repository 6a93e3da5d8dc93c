"""A pytest plugin: property tests draw the same examples each time, remember none, and do not look for smaller ones."""

from hypothesis import Phase, settings

settings.register_profile("mutants", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate))
settings.load_profile("mutants")
