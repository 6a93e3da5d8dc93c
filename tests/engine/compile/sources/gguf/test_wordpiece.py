"""WordPiece of GGUF files beside transformers' BertTokenizer of the same vocabulary."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import BertTokenizer

from engine.compile.sources.gguf.vocabulary import TokenKind
from engine.errors import CompileError
from tests.engine.compile.sources.gguf.vocabulary_files import TEXTS, read, vocabulary_file

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "[unused1]",
    "[",
    "]",
    "the",
    "##n",
    "hell",
    "##o",
    "world",
    "it",
    "'",
    "s",
    "12",
    "##3",
    "##45",
    "caf",
    "##e",
    "Caf",
]
WORDS += ["##\u00e9", "\u4e2d", "\u6587", ",", ".", "##[", "def", "f", "(", ")", "x"]
KINDS = [*[int(TokenKind.CONTROL)] * len(SPECIAL), *[int(TokenKind.NORMAL)] * len(WORDS)]
IDS = {"unknown_token_id": 1, "seperator_token_id": 3, "cls_token_id": 2}


def written(token: str) -> str:
    """As llama.cpp's converter spells it."""
    if token in SPECIAL or token == "[unused1]":
        return token
    return token.removeprefix("##") if token.startswith("##") else "\u2581" + token


def bert_file(path: Path, **changes: object) -> Path:
    tokens = [*SPECIAL, *map(written, WORDS)]
    return vocabulary_file(path, **{"model": "bert", "tokens": tokens, "token_type": KINDS, **IDS, **changes})


@pytest.mark.parametrize("lowercase", [None, True, False])
@pytest.mark.parametrize("strips", [None, True, False])
def test_ids_are_those_of_bert(lowercase: bool | None, strips: bool | None, tmp_path: Path) -> None:
    """Lower case unless the file says otherwise; accents go with capitals unless it says otherwise."""
    settings = {"normalizer.lowercase": lowercase, "normalizer.strip_accents": strips}
    spec, ours = read(bert_file(tmp_path / "m.gguf", **settings), tmp_path / "out")
    bert = BertTokenizer(
        vocab={token: i for i, token in enumerate([*SPECIAL, *WORDS])},
        do_lower_case=lowercase is not False,
        strip_accents=(lowercase is not False) if strips is None else strips,
    )
    for text in (*TEXTS, "Hello THEN world, it's 12345", "Caf\u00e9 cafe\u0301", "\u4e2d\u6587 [the] a[", "x" * 101):
        assert list(ours.encode(text, False)) == bert.encode(text, add_special_tokens=False), text
    made = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert made.encode("the world").ids == bert.encode("the world")
    assert (spec.bos_token, spec.eos_token) == ("[CLS]", "[SEP]")
    assert ours.decode(made.encode("then 12345, world").ids) == "then 12345 , world"


def test_an_unknown_token_that_is_spelled_as_a_word(tmp_path: Path) -> None:
    """Where the checkpoint did not say that it is a special one."""
    _, ours = read(bert_file(tmp_path / "m.gguf", unknown_token_id=8), tmp_path / "out")
    assert list(ours.encode("zzz", False)) == [8]
    unused = [*KINDS[:8], int(TokenKind.UNUSED), *KINDS[9:]]
    with pytest.raises(CompileError, match="unknown_token_id 8 is an unused token"):
        read(bert_file(tmp_path / "n.gguf", unknown_token_id=8, token_type=unused), tmp_path / "other")


def test_a_token_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = vocabulary_file(
        tmp_path / "m.gguf",
        model="bert",
        tokens=["##a", "a", *"bcd"],
        token_type=[3, 1, 1, 1, 1],
        unknown_token_id=0,
        seperator_token_id=1,
        cls_token_id=2,
    )
    with pytest.raises(CompileError, match="token '##a' twice"):
        read(path, tmp_path / "out")
