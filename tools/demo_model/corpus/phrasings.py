"""How questions are asked, and facts with their answers."""

from pathlib import Path

import msgspec

Phrases = tuple[str, ...]


class Phrasings(msgspec.Struct, frozen=True):
    """The file phrasings.toml. {} stands for what is asked about."""

    held_out_capitals: Phrases
    capitals: Phrases
    short_capitals: Phrases
    sums: Phrases
    differences: Phrases
    copies: Phrases
    reversals: Phrases
    facts: tuple[tuple[str, str], ...]


PHRASINGS = msgspec.toml.decode(Path(__file__).with_name("phrasings.toml").read_bytes(), type=Phrasings)
