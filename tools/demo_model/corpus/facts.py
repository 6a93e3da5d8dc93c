"""Small everyday facts."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, exchange
from tools.demo_model.corpus.phrasings import PHRASINGS

_OPPOSITES = """hot:cold big:small up:down left:right day:night black:white fast:slow young:old happy:sad open:closed
high:low long:short light:dark full:empty hard:soft wet:dry rich:poor strong:weak early:late good:bad in:out
near:far clean:dirty loud:quiet true:false yes:no first:last front:back"""
_SOUNDS = "dog:barks cat:meows cow:moos duck:quacks lion:roars sheep:bleats horse:neighs bee:buzzes snake:hisses"
_COLOURS = """the_sky:blue grass:green snow:white blood:red coal:black a_lemon:yellow a_carrot:orange milk:white
a_banana:yellow the_sun:yellow a_strawberry:red chocolate:brown"""
_LEGS = "dog:4 cat:4 spider:8 ant:6 bird:2 horse:4 human:2 bee:6 cow:4 snake:0 fish:0"
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_MONTHS = "January February March April May June July August September October November December"


def facts(rng: Random) -> Sample:
    """Ask for one everyday fact."""
    kind = rng.random()
    if kind < 0.3:
        return exchange(*rng.choice(PHRASINGS.facts))
    if kind < 0.5:
        pair = _pick(rng, _OPPOSITES)
        left, right = pair if rng.random() < 0.5 else pair[::-1]
        return exchange(f"What is the opposite of {left}?", f"The opposite of {left} is {right}.")
    if kind < 0.6:
        animal, sound = _pick(rng, _SOUNDS)
        return exchange(f"What sound does a {animal} make?", f"A {animal} {sound}.")
    if kind < 0.75:
        thing, colour = _pick(rng, _COLOURS)
        verb = rng.choice(("What colour is {}?", "What color is {}?", "Which colour is {}?"))
        return exchange(verb.format(thing), f"{thing[0].upper()}{thing[1:]} is {colour}.")
    if kind < 0.85:
        animal, legs = _pick(rng, _LEGS)
        article = "an" if animal[0] in "aeiou" else "a"
        return exchange(
            f"How many legs does {article} {animal} have?", f"{article.capitalize()} {animal} has {legs} legs."
        )
    return _succession(rng)


def _pick(rng: Random, table: str) -> tuple[str, str]:
    left, right = rng.choice(table.split()).replace("_", " ").split(":")
    return left, right


def _succession(rng: Random) -> Sample:
    kind, names = rng.choice((("day", _DAYS.split()), ("month", _MONTHS.split())))
    index = rng.randrange(len(names))
    step, word = rng.choice(((1, "after"), (-1, "before")))
    result = names[(index + step) % len(names)]
    return exchange(f"Which {kind} comes {word} {names[index]}?", f"{result} comes {word} {names[index]}.")
