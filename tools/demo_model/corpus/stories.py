"""Short stories from a small grammar."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, exchange
from tools.demo_model.corpus.phrasings import PHRASINGS
from tools.demo_model.corpus.words import COLOURS, NAMES

WORDS = PHRASINGS.stories


def stories(rng: Random) -> Sample:
    """Tell a story, asked for in a chat or as a plain document."""
    animal = rng.choice(WORDS.animals)
    kind = rng.random()
    if kind < 0.25:
        return Sample(document=story(rng, animal, rng.randint(0, 2)))
    if kind < 0.65:
        return exchange(rng.choice(WORDS.requests).format(animal), story(rng, animal, rng.randint(0, 2)))
    if kind < 0.85:
        return exchange(rng.choice(WORDS.open_requests), story(rng, animal, rng.randint(0, 2)))
    return exchange(rng.choice(WORDS.long_requests).format(animal), story(rng, animal, rng.randint(4, 7)))


def story(rng: Random, animal: str, middles: int) -> str:
    """Tell one story of an animal, with so many sentences in its middle."""
    hero, friend = rng.sample(NAMES, 2)
    wish, goal = rng.choice(WORDS.wishes)
    slots = {
        "animal": animal, "hero": hero, "friend": friend,
        "other": rng.choice([each for each in WORDS.animals if each != animal]),
        "trait": rng.choice(WORDS.traits), "colour": rng.choice(COLOURS),
    }  # fmt: skip
    slots["goal"] = goal.format(**slots)
    trait, place = rng.choice(WORDS.traits), rng.choice(WORDS.places)
    article = "an" if trait[0] in "aeiou" else "a"
    sentences = [
        f"Once upon a time, there was {article} {trait} {{animal}} named {{hero}} who lived {place}.",
        f"One day, {{hero}} wanted to {wish}.",
        rng.choice(WORDS.troubles),
        rng.choice(WORDS.helpers),
        *rng.sample(WORDS.middles, middles),
        rng.choice(WORDS.endings),
    ]
    return " ".join(sentences).format(**slots)
