"""Documents as sequences of tokens of one length."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

from tokenizers import Tokenizer

from engine.bundle.manifest import TextSpec
from engine.compile.text_files import load_tokenizer


def token_sequences(
    documents: Iterable[str], folder: Path, text: TextSpec, vocab: int, length: int, count: int
) -> list[list[int]]:
    """At most `count` sequences of exactly `length` tokens, each beginning where a document does.

    Documents are read until there are enough sequences. Where there are too few, what was left of long documents
    follows, and too little text for one sequence is repeated until it fills it. Special tokens that are written out
    count as such. A model's BOS begins every sequence and stands nowhere else. folder: of the tokenizer.
    """
    tokenizer = load_tokenizer(folder)
    start = _bos(tokenizer, text)
    found: list[list[int]] = []
    rests: list[list[int]] = []
    current = list(start)
    for document in documents:
        ids = [token for token in tokenizer.encode(document, add_special_tokens=False).ids if token < vocab]
        current += ids[len(start) :] if start and ids[:1] == start else ids
        if len(current) < length:
            continue
        found.append(current[:length])
        if len(found) == count:
            return found
        if len(rests) < count:
            rests += _cut(current[length:], start, length)
        current = list(start)
    found += rests[: count - len(found)]
    return found or [_repeated(current, length)]


def _cut(tokens: Sequence[int], start: list[int], length: int) -> Iterator[list[int]]:
    room = length - len(start)
    for first in range(0, len(tokens) - room + 1, room):
        yield [*start, *tokens[first : first + room]]


def _repeated(tokens: Sequence[int], length: int) -> list[int]:
    return list(islice(cycle(tokens or [0]), length))


def _bos(tokenizer: Tokenizer, text: TextSpec) -> list[int]:
    """The token a prompt begins with, where the model wants one."""
    bos = tokenizer.token_to_id(text.bos_token) if text.add_bos and text.bos_token else None
    return [] if bos is None else [bos]
