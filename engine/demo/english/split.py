"""Clean documents, each paragraph once, dealt out whole to training, calibration and held-out text."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SHORTEST, _SHORTEST_DOCUMENT = 50, 400
_PIECE = 3000  # characters, about as many tokens as two windows of an evaluation
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


def shuffled_pieces(documents: Iterable[Document]) -> list[Document]:
    """Documents cut between paragraphs, in the order of their pieces' hashes: the beginning of all is a sample of all.

    A piece ends with the paragraph that makes it `_PIECE` characters long; its name is the document's with a number."""
    pieces = [piece for document in documents for piece in _pieces(document)]
    return sorted(pieces, key=lambda piece: hashlib.sha256(piece.name.encode()).digest())


def _pieces(document: Document) -> Iterator[Document]:
    lines: list[str] = []
    number = 0
    for line in document.text.split("\n"):
        lines.append(line)
        if sum(map(len, lines)) >= _PIECE:
            yield Document(f"{document.name} {number}", "\n".join(lines))
            lines, number = [], number + 1
    if lines:
        yield Document(f"{document.name} {number}", "\n".join(lines))


def part_of(name: str) -> str:
    """Which part a document belongs to: "training", "calibration" or "held_out"; its name alone decides."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % 1000
    if place < _HELD_OUT:
        return "held_out"
    return "calibration" if place < _HELD_OUT + _CALIBRATION else "training"
