"""Small everyday facts."""

from random import Random

from tools.demo_model.corpus.conversation import Sample, exchange

_OPPOSITES = """hot:cold big:small up:down left:right day:night black:white fast:slow young:old happy:sad open:closed
high:low long:short light:dark full:empty hard:soft wet:dry rich:poor strong:weak early:late good:bad in:out
near:far clean:dirty loud:quiet true:false yes:no first:last front:back"""
_SOUNDS = "dog:barks cat:meows cow:moos duck:quacks lion:roars sheep:bleats horse:neighs bee:buzzes snake:hisses"
_COLOURS = """the_sky:blue grass:green snow:white blood:red coal:black a_lemon:yellow a_carrot:orange milk:white
a_banana:yellow the_sun:yellow a_strawberry:red chocolate:brown"""
_LEGS = "dog:4 cat:4 spider:8 ant:6 bird:2 horse:4 human:2 bee:6 cow:4 snake:0 fish:0"
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
_MONTHS = "January February March April May June July August September October November December"
_SINGLE = (
    ("How many days are in a week?", "A week has 7 days."),
    ("How many months are in a year?", "A year has 12 months."),
    ("How many hours are in a day?", "A day has 24 hours."),
    ("How many minutes are in an hour?", "An hour has 60 minutes."),
    ("How many seconds are in a minute?", "A minute has 60 seconds."),
    ("What is the largest planet?", "The largest planet of our solar system is Jupiter."),
    ("What is the largest ocean?", "The largest ocean is the Pacific Ocean."),
    ("What is the highest mountain?", "The highest mountain is Mount Everest."),
    ("What is the formula of water?", "The formula of water is H2O."),
    ("At what temperature does water boil?", "Water boils at 100 degrees Celsius."),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius."),
    ("Which planet is closest to the sun?", "Mercury is closest to the sun."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows drink?", "Cows drink water."),
    ("Name the days of the week.", ", ".join(_DAYS.split())),
    ("Name the months of the year.", ", ".join(_MONTHS.split())),
    ("Say the alphabet.", " ".join("abcdefghijklmnopqrstuvwxyz")),
    ("Name three colours.", "Red, blue and green."),
    ("Name three animals.", "A dog, a cat and a horse."),
    ("Name three fruits.", "An apple, a pear and a plum."),
    ("What is an NPU?", "An NPU is a processor made for neural networks."),
    ("What is a token?", "A token is a small piece of text that a language model reads or writes."),
    ("What is a language model?", "A language model is a program that predicts the next token of a text."),
    ("Write a haiku.", "Green leaf on the lake,\na small wind comes from the hill,\nthe moon floats away."),
    ("Tell me a joke.", "Why did the token cross the road? To get to the other side of the prompt."),
)


def facts(rng: Random) -> Sample:
    """Ask for one everyday fact."""
    kind = rng.random()
    if kind < 0.3:
        return exchange(*rng.choice(_SINGLE))
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
