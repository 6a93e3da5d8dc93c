"""Clean documents, each paragraph once, dealt out whole to training, calibration and held-out text."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SHORTEST, _SHORTEST_DOCUMENT = 50, 400
_LETTERS = 0.75
_PLAIN = 0.98
# Of 1,000 documents so many each, by the hash of their names.
_HELD_OUT, _CALIBRATION = 10, 10


@dataclass(frozen=True)
class Document:
    """A text of several paragraphs. name: the package and the path of the file in it."""

    name: str
    text: str


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is a sentence or more of mostly ASCII letters."""
    letters = sum(each.isalpha() or each == " " for each in paragraph)
    plain = sum(each.isascii() for each in paragraph)
    size = len(paragraph)
    return size >= _SHORTEST and letters >= _LETTERS * size and plain >= _PLAIN * size


def clean_documents(files: Iterable[tuple[str, list[str]]]) -> Iterator[Document]:
    """Documents of (name, paragraphs): prose only, each paragraph in the first document that has it, none too short."""
    seen: set[bytes] = set()
    for name, paragraphs in files:
        kept = []
        for paragraph in paragraphs:
            key = hashlib.sha256(paragraph.lower().encode()).digest()
            if is_prose(paragraph) and key not in seen:
                seen.add(key)
                kept.append(paragraph)
        text = "\n".join(kept)
        if len(text) >= _SHORTEST_DOCUMENT:
            yield Document(name, text)


def part_of(name: str) -> str:
    """Which part a document belongs to: "training", "calibration" or "held_out"; its name alone decides."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % 1000
    if place < _HELD_OUT:
        return "held_out"
    return "calibration" if place < _HELD_OUT + _CALIBRATION else "training"
