"""Documents as sequences of tokens: where they begin, and what happens when there is too little text."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.bundle.manifest import TextSpec
from engine.compile.calibration.documents import token_sequences

LETTERS = "abcdefghij"
PLAIN = TextSpec("tokenizer.json", None, ())
WITH_BOS = msgspec.structs.replace(PLAIN, bos_token="<s>", add_bos=True)
BOS, END = len(LETTERS), len(LETTERS) + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer with a token for each letter."""
    tokenizer = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(LETTERS)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def cut(folder: Path, documents: list[str], length: int, count: int, text: TextSpec = PLAIN) -> list[list[int]]:
    return token_sequences(documents, folder, text, 99, length, count)


def test_each_begins_where_a_document_does(folder: Path) -> None:
    assert cut(folder, ["abcd", "ef", "gh", "ij"], 3, 2) == [[0, 1, 2], [4, 5, 6]]


def test_what_was_left_of_long_documents_follows(folder: Path) -> None:
    assert cut(folder, ["abcdefgh", "ij", "cd"], 3, 9) == [[0, 1, 2], [8, 9, 2], [3, 4, 5]]
    assert cut(folder, ["abcdefgh", "ij", "cd"], 3, 2) == [[0, 1, 2], [8, 9, 2]]
    assert cut(folder, ["abcdefghij"], 3, 9) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_too_little_text_is_repeated(folder: Path) -> None:
    assert cut(folder, ["abc"], 7, 9) == [[0, 1, 2, 0, 1, 2, 0]]
    assert cut(folder, [], 2, 9) == [[0, 0]]


def test_the_first_token_of_a_text_begins_each_and_stands_nowhere_else(folder: Path) -> None:
    documents = ["<s>ab", "<s>cdefgh", "ij"]
    assert cut(folder, documents, 4, 9, WITH_BOS) == [[BOS, 0, 1, 2], [BOS, 3, 4, 5]]
    assert cut(folder, documents[:1], 4, 9, PLAIN) == [[BOS, 0, 1, BOS]]  # the model wants none: as it is written


def test_special_tokens_and_the_vocabularys_end(folder: Path) -> None:
    assert cut(folder, ["a</s>b"], 3, 1) == [[0, END, 1]]
    assert token_sequences(["a</s>b"], folder, PLAIN, END, 2, 1) == [[0, 1]]


def test_no_more_is_read_than_is_wanted(folder: Path) -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "abc"

    assert len(token_sequences(endless(), folder, PLAIN, 99, 2, 5)) == 5
