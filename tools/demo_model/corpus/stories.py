"""Short stories from a small grammar."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, exchange
from tools.demo_model.corpus.words import COLOURS, NAMES, listed

_ANIMALS = listed("fox rabbit bear mouse owl cat dog frog horse duck turtle goat squirrel hen bird fish")
_PLACES = (
    "near a river", "in a small village", "at the edge of a forest", "on a hill", "by the sea",
    "in an old garden", "under a big tree", "in a quiet town",
)  # fmt: skip
_TRAITS = listed("little kind brave clever happy shy curious old young sleepy")
_WISHES = (
    ("find a {colour} stone", "the {colour} stone"), ("see the ocean", "the ocean"),
    ("bake a big cake", "the big cake"), ("fly a {colour} kite", "the {colour} kite"),
    ("grow a {colour} flower", "the {colour} flower"), ("build a boat", "the boat"),
    ("learn a song", "the song"), ("find a new friend", "a new friend"),
)  # fmt: skip
_TROUBLES = (
    "But it started to rain.", "But the road was very long.", "But the night was dark and cold.",
    "But nobody knew how to do it.", "But a big stone was in the way.", "But the wind was too strong.",
)  # fmt: skip
_HELPERS = (
    "Then a {trait} {other} came by and said: \"I will help you.\"",
    "A {trait} {other} heard about it and came to help.",
    "Luckily, a {other} named {friend} was near and wanted to help.",
)  # fmt: skip
_MIDDLES = (
    "They worked together all day.", "They walked for three days.", "They laughed and shared some bread.",
    "They slept under the stars.", "They sang a song on the way.", "They crossed a small bridge.",
    "They asked an old woman for the way.", "In the morning the sun came out.",
)  # fmt: skip
_ENDINGS = (
    "At last they had {goal}, and {hero} was very happy.",
    "In the end they had {goal}, and they danced until night.",
    "When the sun went down, they had {goal} and were friends for ever.",
)
_REQUESTS = ("Tell me a story about a {}.", "Write a short story about a {}.", "Tell a story about a {}, please.")
_OPEN_REQUESTS = (
    "Tell me a story.", "Tell me a short story.", "Write a story.", "Write a short story.", "Once upon a time",
    "Please tell me a story.", "Can you tell me a story?",
)  # fmt: skip
_LONG_REQUESTS = ("Tell me a long story.", "Write a long story.", "Tell me a long story about a {}.")


def stories(rng: Random) -> Sample:
    """Tell a story, asked for in a chat or as a plain document."""
    animal = rng.choice(_ANIMALS)
    kind = rng.random()
    if kind < 0.25:
        return Sample(document=story(rng, animal, rng.randint(0, 2)))
    if kind < 0.65:
        return exchange(rng.choice(_REQUESTS).format(animal), story(rng, animal, rng.randint(0, 2)))
    if kind < 0.85:
        return exchange(rng.choice(_OPEN_REQUESTS), story(rng, animal, rng.randint(0, 2)))
    return exchange(rng.choice(_LONG_REQUESTS).format(animal), story(rng, animal, rng.randint(4, 7)))


def story(rng: Random, animal: str, middles: int) -> str:
    """Tell one story of an animal, with so many sentences in its middle."""
    hero, friend = rng.sample(NAMES, 2)
    wish, goal = rng.choice(_WISHES)
    slots = {
        "animal": animal, "hero": hero, "friend": friend,
        "other": rng.choice([each for each in _ANIMALS if each != animal]),
        "trait": rng.choice(_TRAITS), "colour": rng.choice(COLOURS),
    }  # fmt: skip
    slots["goal"] = goal.format(**slots)
    trait, place = rng.choice(_TRAITS), rng.choice(_PLACES)
    article = "an" if trait[0] in "aeiou" else "a"
    sentences = [
        f"Once upon a time, there was {article} {trait} {{animal}} named {{hero}} who lived {place}.",
        f"One day, {{hero}} wanted to {wish}.",
        rng.choice(_TROUBLES),
        rng.choice(_HELPERS),
        *rng.sample(_MIDDLES, middles),
        rng.choice(_ENDINGS),
    ]
    return " ".join(sentences).format(**slots)
