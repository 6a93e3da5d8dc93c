"""Pools of words, and makers of invented names."""

from random import Random

from tools.demo_model.corpus.phrasings import PHRASINGS

NOUNS, COLOURS, NAMES, CITIES = PHRASINGS.nouns, PHRASINGS.colours, PHRASINGS.names, PHRASINGS.cities


def invented(rng: Random) -> str:
    """Make up a word of one to three syllables."""
    count = rng.choice((1, 2, 2, 2, 3))
    syllables = (rng.choice(PHRASINGS.syllable_openings) + rng.choice(PHRASINGS.syllable_vowels) for _ in range(count))
    return "".join(syllables) + rng.choice(PHRASINGS.syllable_endings)


def word(rng: Random) -> str:
    """Draw a noun, a colour, a name or an invented word."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(NOUNS)
    if kind < 0.65:
        return rng.choice(COLOURS)
    return rng.choice(NAMES) if kind < 0.75 else invented(rng)
