"""Gemma 4's BPE over plain text, beside transformers' own tokenizer of the family."""

from pathlib import Path

import pytest
from transformers import GemmaTokenizer

from engine.compile.sources.gguf.vocabulary import TokenKind
from tests.engine.compile.sources.gguf.vocabulary_files import TEXTS, byte_file, read

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MERGES = ["\n \n", "\u2581 \u2581", "\u2581 t", "h e", "\u2581t he", "l l", "he ll", "hell o", "\n\n \n\n", "e \u0301"]
LETTERS = ["\n", "\u2581", *"abcdefghijklmnopqrstuvwxyz,.'", "\u0301"]
TOKENS = [*SPECIAL, *BYTES, *LETTERS, *("".join(merge.split(" ")) for merge in MERGES), "<|tool_call>"]
KINDS = [
    *[int(TokenKind.CONTROL)] * len(SPECIAL),
    *[int(TokenKind.BYTE)] * len(BYTES),
    *[int(TokenKind.NORMAL)] * (len(LETTERS) + len(MERGES)),
    int(TokenKind.USER_DEFINED),
]
GEMMA = byte_file(
    model="gemma4",
    pre=None,
    tokens=TOKENS,
    token_type=KINDS,
    merges=MERGES,
    bos_token_id=2,
    eos_token_id=1,
    unknown_token_id=3,
)


def test_ids_are_those_of_the_familys_tokenizer(tmp_path: Path) -> None:
    spec, ours = read(GEMMA(tmp_path / "m.gguf"), tmp_path / "out")
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    family = GemmaTokenizer(vocab={token: i for i, token in enumerate(TOKENS)}, merges=pairs)
    for text in (*TEXTS, "  the hello\n\n\n\n\nthe e\u0301", "the <|tool_call>the"):
        plain = text.replace("<|tool_call>", "")
        assert list(ours.encode(plain, False)) == family.encode(plain, add_special_tokens=False)
        assert ours.decode(ours.encode(text, False)) == text
    assert [ours.token_name(i) for i in ours.encode("the <|tool_call>", False)] == ["t", "he", "\u2581", "<|tool_call>"]
    assert (spec.bos_token, spec.eos_token, spec.stop_ids) == ("<bos>", "<eos>", (1,))


@pytest.mark.parametrize(("says", "wanted"), [(None, True), (True, True), (False, False)])
def test_a_text_begins_with_bos_unless_the_file_says_otherwise(says: bool | None, wanted: bool, tmp_path: Path) -> None:
    changed = byte_file(model="gemma4", pre=None, bos_token_id=0, add_bos_token=says)
    assert read(changed(tmp_path / "m.gguf"), tmp_path / "out")[0].add_bos is wanted
