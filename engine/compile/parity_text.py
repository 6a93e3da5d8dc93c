"""The text a finished bundle is checked with."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from engine.compile.text_files import load_tokenizer
from engine.demo.corpus.conversation import Sample, render
from engine.demo.exam import exams
from engine.demo.location import SHIPPED

QUESTIONS = 8

_TEXT = """A lighthouse keeper wrote the weather into a book every evening: wind from the west, 4 degrees, rain before
midnight. One day a boat brought 12 crates and a letter. "Count them twice," it said, "and answer by the next tide."
She counted them twice, found 11, and wrote back at once. What would you have done? def total(items): return
sum(item.price * item.count for item in items)  # prices are in cents. Die Kiste war leer. La réponse est simple."""


def parity_tokens(folder: Path, vocab: int, count: int) -> list[int]:
    """Exactly `count` ids of the built-in text by the folder's tokenizer, repeated as needed; all below `vocab`."""
    ids = [token for token in load_tokenizer(folder).encode(_TEXT).ids if token < vocab] or [0]
    return [ids[index % len(ids)] for index in range(count)]


def parity_texts(source: Path, folder: Path, vocab: int, count: int, longest: int) -> list[list[int]]:
    """About `count` ids (at least 2) in sequences of at most `longest`.

    Shipped models are asked what their training held out; any other model gets the built-in text.
    """
    if source.resolve() not in [folder() for folder in SHIPPED.values()]:
        return [parity_tokens(folder, vocab, min(count, longest))]
    texts: list[list[int]] = []
    tokenizer = load_tokenizer(folder)
    for sample in _held_out():
        left = count - sum(map(len, texts))
        if left < 2:
            break
        ids = tokenizer.encode("".join(span.text for span in render(sample)), add_special_tokens=False).ids
        if len(ids) <= longest:
            texts.append(ids[:left])
    return texts or [parity_tokens(folder, vocab, min(count, longest))]


def _held_out() -> Iterator[Sample]:
    """A question of each exam with its answer, then the next of each."""
    for questions in zip_longest(*(exam.questions for exam in exams(QUESTIONS))):
        yield from (question.sample for question in questions if question is not None)
