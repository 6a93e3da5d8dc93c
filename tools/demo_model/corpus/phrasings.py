"""The words of the corpus: how questions are asked, and what they are about."""

from pathlib import Path
from typing import NamedTuple

import msgspec

Phrases = tuple[str, ...]
Pairs = tuple[tuple[str, str], ...]


class Country(NamedTuple):
    """A country, its capital and its continent."""

    name: str
    capital: str
    continent: str


class StoryWords(msgspec.Struct, frozen=True):
    """What stories are made of, and how they are asked for."""

    animals: Phrases
    places: Phrases
    traits: Phrases
    wishes: Pairs
    troubles: Phrases
    helpers: Phrases
    middles: Phrases
    endings: Phrases
    requests: Phrases
    open_requests: Phrases
    long_requests: Phrases


class Phrasings(msgspec.Struct, frozen=True):
    """The file phrasings.toml. {} stands for what is asked about."""

    held_out_capitals: Phrases
    capitals: Phrases
    short_capitals: Phrases
    sums: Phrases
    differences: Phrases
    copies: Phrases
    reversals: Phrases
    facts: Pairs
    nouns: Phrases
    colours: Phrases
    names: Phrases
    cities: Phrases
    syllable_openings: Phrases
    syllable_vowels: Phrases
    syllable_endings: Phrases
    countries: tuple[Country, ...]
    opposites: Pairs
    sounds: Pairs
    things: Pairs
    legs: Pairs
    days: Phrases
    months: Phrases
    json_requests: Phrases
    small_talk: tuple[tuple[Phrases, Phrases], ...]
    unknown: Phrases
    systems: Phrases
    stories: StoryWords


PHRASINGS = msgspec.toml.decode(Path(__file__).with_name("phrasings.toml").read_bytes(), type=Phrasings)
