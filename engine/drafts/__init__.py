"""A smaller model that guesses what the served one will say: a runtime of its own, with a cache for each sequence."""
