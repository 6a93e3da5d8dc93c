"""Small everyday facts."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, exchange
from tools.demo_model.corpus.phrasings import PHRASINGS


def facts(rng: Random) -> Sample:
    """Ask for one everyday fact."""
    kind = rng.random()
    if kind < 0.3:
        return exchange(*rng.choice(PHRASINGS.facts))
    if kind < 0.5:
        pair = rng.choice(PHRASINGS.opposites)
        left, right = pair if rng.random() < 0.5 else pair[::-1]
        return exchange(f"What is the opposite of {left}?", f"The opposite of {left} is {right}.")
    if kind < 0.6:
        animal, sound = rng.choice(PHRASINGS.sounds)
        return exchange(f"What sound does a {animal} make?", f"A {animal} {sound}.")
    if kind < 0.75:
        thing, colour = rng.choice(PHRASINGS.things)
        verb = rng.choice(("What colour is {}?", "What color is {}?", "Which colour is {}?"))
        return exchange(verb.format(thing), f"{thing[0].upper()}{thing[1:]} is {colour}.")
    if kind < 0.85:
        animal, legs = rng.choice(PHRASINGS.legs)
        article = "an" if animal[0] in "aeiou" else "a"
        return exchange(
            f"How many legs does {article} {animal} have?", f"{article.capitalize()} {animal} has {legs} legs."
        )
    return _succession(rng)


def _succession(rng: Random) -> Sample:
    kind, names = rng.choice((("day", PHRASINGS.days), ("month", PHRASINGS.months)))
    index = rng.randrange(len(names))
    step, word = rng.choice(((1, "after"), (-1, "before")))
    result = names[(index + step) % len(names)]
    return exchange(f"Which {kind} comes {word} {names[index]}?", f"{result} comes {word} {names[index]}.")
