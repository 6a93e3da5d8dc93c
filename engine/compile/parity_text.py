"""The text a finished bundle is checked with."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from engine.compile.text_files import load_tokenizer
from engine.demo.corpus.conversation import Sample, render
from engine.demo.exam import exams
from engine.demo.location import SHIPPED

QUESTIONS = 8
MOST_TOKENS, LEAST_TOKENS = 512, 64
LARGE = 1_000_000_000  # parameters from which on fewer tokens are taken, so that the check takes as long

_TEXT = """The ferry to the northern islands left at six, and by half past five the quay was already full. Farmers with
crates of early potatoes stood beside students on their way home, and an old woman sat on a suitcase that was tied with
string, reading a newspaper from the week before. Nobody spoke much. The fog had not lifted for three days, and the
captain, who had been seen walking up and down in front of the harbour office, had not yet said whether he would sail.

When the horn finally sounded, it was not theirs. A small grey boat came out of the mist, turned once in the basin and
tied up where the fishing boats usually lay. Two men carried a long wooden box ashore. "Careful," one of them said, "it
has to be dry when it gets there." The customs officer asked what was inside. "An instrument," the other answered, "a
kind of clock, for the university." He showed a paper with three stamps on it, and the officer let them pass.

How does a tide mill work? Twice a day the rising sea fills a pond behind a dam through a gate that closes by itself as
soon as the water outside begins to fall. The miller then waits until the level outside is low enough, opens the sluice
to the wheel and grinds for five or six hours. Because high water comes about fifty minutes later every day, he has to
get up at a different time each morning, and in some weeks he works mostly at night. Mills of this kind were common
along the Atlantic coast of Europe from the twelfth century on; a few of them still run today.

To store a day of measurements, the program opens one file per station, appends a line for each reading and flushes the
buffer every minute. If the disk is full, the oldest file is compressed first and deleted only when that is not enough.

def rolling_mean(values, width):
    total, found = 0.0, []
    for index, value in enumerate(values):
        total += value
        if index >= width:
            total -= values[index - width]
        found.append(total / min(index + 1, width))
    return found

{"station": "Holm", "readings": [{"hour": 6, "wind": 11.5, "rain": false}, {"hour": 12, "wind": 14.0, "rain": true}]}

Question: A train leaves at 14:20 and takes 2 hours and 55 minutes. When does it arrive? Answer: 14:20 plus 2 hours is
16:20, and 55 minutes more make 17:15, so it arrives at a quarter past five.

The committee could not agree. Half of its members wanted to repair the bridge at once, since every winter made the
damage worse; the others pointed out that the new road, if it was ever built, would make the bridge useless. In the end
they did what committees do: they asked for another report, and met again in spring.

Der Bus hielt nur, wenn jemand winkte. Am Morgen standen vier Kinder an der Strasse und warteten im Regen.
Le marchand pesa les pommes, compta les pièces et rendit la monnaie sans dire un mot.
"""


def enough_tokens(parameters: int) -> int:
    """Tokens of a check that means something: 512, of a model with more than 1e9 parameters fewer, but at least 64."""
    return max(LEAST_TOKENS, min(MOST_TOKENS, MOST_TOKENS * LARGE // max(parameters, 1)))


def parity_tokens(folder: Path, vocab: int, count: int) -> list[int]:
    """Exactly `count` ids of the built-in text by the folder's tokenizer, repeated as needed; all below `vocab`."""
    ids = [token for token in load_tokenizer(folder).encode(_TEXT).ids if token < vocab] or [0]
    return [ids[index % len(ids)] for index in range(count)]


def parity_texts(source: Path, folder: Path, vocab: int, count: int, longest: int) -> list[list[int]]:
    """About `count` ids (at least 2) in sequences of at most `longest`.

    Shipped models are asked what their training held out; any other model gets the built-in text in even pieces.
    """
    if source.resolve() not in [folder() for folder in SHIPPED.values()]:
        return _pieces(parity_tokens(folder, vocab, count), longest)
    texts: list[list[int]] = []
    tokenizer = load_tokenizer(folder)
    for sample in _held_out():
        left = count - sum(map(len, texts))
        if left < 2:
            break
        ids = tokenizer.encode("".join(span.text for span in render(sample)), add_special_tokens=False).ids
        if len(ids) <= longest:
            texts.append(ids[:left])
    return texts or _pieces(parity_tokens(folder, vocab, count), longest)


def _pieces(tokens: list[int], longest: int) -> list[list[int]]:
    """As few as hold all tokens, of nearly one length, none of a single token."""
    length = -(-len(tokens) // -(-len(tokens) // longest))
    pieces = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    return [piece for piece in pieces if len(piece) > 1] or pieces


def _held_out() -> Iterator[Sample]:
    """A question of each exam with its answer, then the next of each."""
    for questions in zip_longest(*(exam.questions for exam in exams(QUESTIONS))):
        yield from (question.sample for question in questions if question is not None)
