"""Pools of words and makers of invented names."""

from random import Random


def listed(words: str) -> tuple[str, ...]:
    """Split a table of words written as one text."""
    return tuple(words.split())


NOUNS: tuple[str, ...] = (
    listed("""apple bread chair river stone cloud lamp horse table garden window bottle candle forest mountain pencil
paper basket bridge castle engine flower guitar hammer island jacket kettle ladder mirror needle orange pillow
rabbit spoon ticket umbrella violin wagon blanket carrot desk eagle fence glove harbor jungle kitten lemon melon
nest ocean piano queen rocket sailor tiger valley whale yacht zebra anchor button camera dragon elbow feather goat
honey insect jewel knife leaf mouse night onion parrot quilt ribbon salt train uncle village wheel yard door key
cup hat ball fish bird tree house boat car road rain snow sun moon star fire water milk egg cake rice corn bean
pear plum grape cherry peach""")
)
COLOURS: tuple[str, ...] = listed("red blue green yellow black white orange purple brown pink grey silver")
NAMES: tuple[str, ...] = (
    listed("""Ann Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam Tina Uma
Victor Wendy Xavier Yara Zoe Alice Bob Carol Dan Eva Frank Gina Hugo Ivan Julia Karl Lena Max Nina Oscar Petra
Robin Sara Tom Vera Will""")
)
CITIES: tuple[str, ...] = (
    listed("""Paris Berlin Rome Madrid Lisbon Vienna London Dublin Oslo Tokyo Beijing Cairo Nairobi Boston Chicago
Seattle Toronto Sydney Munich Milan Prague Athens Helsinki Lima Hamburg Lyon Naples Denver Austin Dallas Mumbai Seoul
Bangkok Geneva Zurich Porto""")
)
_OPENINGS = listed("b c d f g h j k l m n p r s t v w z br cl dr fl gr kl pl sk sn st tr")
_VOWELS = listed("a e i o u ai ee oo")
_ENDINGS = ("", "", "n", "r", "l", "s", "t", "x", "m", "nd", "rk", "p")


def invented(rng: Random) -> str:
    """Make up a word of one to three syllables."""
    count = rng.choice((1, 2, 2, 2, 3))
    syllables = (rng.choice(_OPENINGS) + rng.choice(_VOWELS) for _ in range(count))
    return "".join(syllables) + rng.choice(_ENDINGS)


def word(rng: Random) -> str:
    """Draw a noun, a colour, a name or an invented word."""
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(NOUNS)
    if kind < 0.65:
        return rng.choice(COLOURS)
    return rng.choice(NAMES) if kind < 0.75 else invented(rng)
