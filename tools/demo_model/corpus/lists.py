"""Copying and reversing lists, the tasks that show whether a key-value cache works."""

from collections.abc import Callable
from random import Random
from string import ascii_lowercase, ascii_uppercase

from tools.demo_model.corpus.conversation import Sample, exchange
from tools.demo_model.corpus.held_out import reserved
from tools.demo_model.corpus.phrasings import PHRASINGS
from tools.demo_model.corpus.words import NOUNS, word

_SELECTIONS = (("What is the first item of this list? {}", 0), ("What is the last item of this list? {}", -1))
_TOPS = (50, 100, 100, 1000)


def lists(rng: Random) -> Sample:
    """Ask for a list to be copied or reversed, or for one of its ends."""
    while True:
        kind = rng.random()
        if kind < 0.77:
            question, answer = copying(rng, _length(rng))
        elif kind < 0.92:
            question, answer = reversal(rng, min(_length(rng), rng.choice((8, 12, 30))))
        elif kind < 0.95:
            question, answer = _selection(rng)
        else:
            return _repeated_document(rng)
        if not reserved(question):
            return exchange(question, answer)


def echoes(rng: Random) -> Sample:
    """Ask for a few words to be copied, from which copying is learned soonest."""
    return _copied(rng, lambda: _draw(rng, rng.randint(2, 9), [word(rng) for _ in range(20)], True))


def numerals(rng: Random) -> Sample:
    """Ask for a list of numbers to be copied, in which digits alone do not tell the place."""

    def items() -> list[str]:
        length, top = rng.randint(6, 30), rng.choice(_TOPS)
        return _draw(rng, length, list(map(str, range(top))), rng.random() < 0.9)

    return _copied(rng, items)


def _copied(rng: Random, items: Callable[[], list[str]]) -> Sample:
    while True:
        listed = items()
        text = _separator(rng).join(listed)
        question = rng.choice(PHRASINGS.copies).format(text)
        if not reserved(question):
            return exchange(question, text)


def copying(rng: Random, length: int) -> tuple[str, str]:
    """Return a request to copy a list of this length, and the list."""
    text = _separator(rng).join(_items(rng, length))
    return rng.choice(PHRASINGS.copies).format(text), text


def reversal(rng: Random, length: int) -> tuple[str, str]:
    """Return a request to reverse a list of this length, and the reversed list."""
    separator = _separator(rng)
    items = _items(rng, length)
    return rng.choice(PHRASINGS.reversals).format(separator.join(items)), separator.join(reversed(items))


def _selection(rng: Random) -> tuple[str, str]:
    items = _items(rng, rng.randint(3, 10))
    question, position = rng.choice(_SELECTIONS)
    return question.format(", ".join(items)), items[position]


def _repeated_document(rng: Random) -> Sample:
    text = " ".join(_items(rng, rng.randint(4, 12)))
    return Sample(document=f"{text}\n{text}")


def _length(rng: Random) -> int:
    return rng.randint(3, 12) if rng.random() < 0.55 else rng.randint(12, 30)


def _separator(rng: Random) -> str:
    return rng.choice((", ", ", ", ", ", " "))


def _items(rng: Random, length: int) -> list[str]:
    """Draw items, distinct in nine of ten lists as far as the kind of item allows."""
    kind = rng.random()
    distinct = rng.random() < 0.9
    if kind < 0.55:
        return _draw(rng, length, [word(rng) for _ in range(3 * length)], distinct)
    if kind < 0.65:
        return _draw(rng, length, list(NOUNS), distinct)
    if kind < 0.75:
        return _draw(rng, length, list(rng.choice((ascii_lowercase, ascii_uppercase))), distinct and length <= 26)
    return _draw(rng, length, [str(number) for number in range(rng.choice(_TOPS))], distinct)


def _draw(rng: Random, length: int, pool: list[str], distinct: bool) -> list[str]:
    unique = list(dict.fromkeys(pool))
    if distinct and len(unique) >= length:
        return rng.sample(unique, length)
    return rng.choices(unique, k=length)
