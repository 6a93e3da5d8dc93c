"""Unigram of GGUF files: the best sum of scores, by trying every way to cut a text."""

import re
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.compile.sources.gguf.vocabulary import TokenKind
from engine.errors import CompileError
from tests.engine.compile.sources.gguf.vocabulary_files import read, vocabulary_file

SPACE = "\u2581"
SPECIAL = ["<pad>", "</s>", "<unk>"]
SCORES = {
    "\u2581the": -3.1,
    "\u2581": -2.0,
    "t": -5.3,
    "he": -4.2,
    "h": -6.0,
    "e": -4.9,
    "n": -4.0,
    "then": -6.7,
    "\u2581then": -7.9,
}
SCORES |= {"1": -6.1, "12": -6.6, "23": -6.5, "123": -11.0, "2": -7.2, "3": -7.3, "a": -3.3, "aa": -5.9, "aaa": -8.1}
UNKNOWN = min(SCORES.values()) - 10  # as SentencePiece scores a character without a piece
TOKENS = [*SPECIAL, *SCORES]
KINDS = [3, 3, int(TokenKind.UNKNOWN), *[1] * len(SCORES)]


def unigram_file(path: Path, **changes: object) -> Path:
    values = {"model": "t5", "tokens": TOKENS, "token_type": KINDS, "scores": [0.0] * 3 + list(SCORES.values())}
    return vocabulary_file(path, **(values | changes))


def best_cut(text: str) -> list[str]:
    """The definition; neighbours without a piece become one unknown token."""

    @cache
    def best(start: int) -> tuple[float, tuple[str, ...]]:
        if start == len(text):
            return 0.0, ()
        found = [(UNKNOWN + best(start + 1)[0], ("<unk>", *best(start + 1)[1]))] if text[start] not in SCORES else []
        for piece, score in SCORES.items():
            if text.startswith(piece, start):
                rest = best(start + len(piece))
                found.append((score + rest[0], (piece, *rest[1])))
        return max(found)

    pieces = list(best(0)[1])
    return [piece for i, piece in enumerate(pieces) if piece != "<unk>" or i == 0 or pieces[i - 1] != "<unk>"]


@pytest.mark.parametrize("merges_spaces", [True, False])
@pytest.mark.parametrize("has_prefix", [True, False])
def test_the_best_pieces_are_found(has_prefix: bool, merges_spaces: bool, tmp_path: Path) -> None:
    settings = {"add_space_prefix": has_prefix, "remove_extra_whitespaces": merges_spaces}
    _, ours = read(unigram_file(tmp_path / "m.gguf", **settings), tmp_path / "out")
    for text in ("then the 123", "aaaaaaa then", "the  then ", " zz the zzz", "heh12312", "", " ", "</s>the"):
        kept = re.sub(" +", " ", text).strip(" ") if merges_spaces else text
        written = (SPACE + kept if has_prefix and kept else kept).replace(" ", SPACE)
        assert [ours.token_name(i) for i in ours.encode(text, False)] == best_cut(written), text
        if "z" not in text and "<" not in text:
            assert ours.decode(ours.encode(text, False)) == kept


def test_an_end_stands_behind_a_text_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    """T5 has no begin token; XLM-RoBERTa's files name both."""
    cases = [({}, [3, 1]), ({"add_eos_token": False}, [3])]
    cases += [({"bos_token_id": 0, "add_bos_token": True}, [0, 3, 1])]
    for settings, wanted in cases:
        read(unigram_file(tmp_path / "m.gguf", add_space_prefix=True, **settings), tmp_path / "out")
        assert Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode("the").ids == wanted


def charsmap(units: dict[int, int], replacements: bytes) -> list[int]:
    """As SentencePiece stores it: size, a double array of 256 entries, replacements."""
    array = b"".join(units.get(place, 0).to_bytes(4, "little") for place in range(256))
    return list(len(array).to_bytes(4, "little") + array + replacements)


# "x" (120) is written "a": from the root to the entry of its letter, from there to the value.
LETTER, LEAF, VALUE = 120, 1 << 8, 1 << 31
MAPPED = {0: 0, LETTER: LETTER | LEAF | 1 << 10, LETTER ^ 1: VALUE}


def octets(numbers: list[int]) -> bytes:
    return bytes(numbers)


def test_characters_are_replaced_as_the_file_says(tmp_path: Path) -> None:
    path = unigram_file(tmp_path / "m.gguf", precompiled_charsmap=octets(charsmap(MAPPED, b"a\0")))
    _, ours = read(path, tmp_path / "out")
    assert [ours.token_name(i) for i in ours.encode("xxthe", False)] == ["aa", "t", "he"]


DAMAGED = {
    "too short": [1, 2],
    "longer than the file": [0, 8, 0, 0, *[0] * 1024],
    "no whole blocks": [4, 0, 0, 0, *[0] * 8],
    "a node that leads out": charsmap(MAPPED | {0: 1 << 20}, b"a\0"),
    "a value behind the end": charsmap(MAPPED | {LETTER ^ 1: VALUE | 2}, b"a\0"),
    "a value inside a character": charsmap(MAPPED | {LETTER ^ 1: VALUE | 1}, "\u00e9\0".encode()),
    "replacements that are no text": charsmap(MAPPED, b"\xff\0"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_map_of_characters_is_refused(case: str, tmp_path: Path) -> None:
    path = unigram_file(tmp_path / "m.gguf", precompiled_charsmap=octets(DAMAGED[case]))
    with pytest.raises(CompileError, match="precompiled_charsmap is damaged"):
        read(path, tmp_path / "out")


def test_what_is_missing_or_of_another_type_is_refused(tmp_path: Path) -> None:
    for changes, reason in (
        ({"scores": None}, "no scores"),
        ({"unknown_token_id": 99}, "token id below"),
        ({"precompiled_charsmap": "text"}, "must be an array of bytes"),
    ):
        with pytest.raises(CompileError, match=reason):
            read(unigram_file(tmp_path / "m.gguf", **changes), tmp_path / "out")
