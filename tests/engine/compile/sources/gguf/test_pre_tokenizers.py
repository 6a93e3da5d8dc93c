"""Where texts are cut, by the names that GGUF files write."""

import unicodedata
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from engine.compile.sources.gguf.vocabulary import PRE_TOKENIZERS
from tests.engine.compile.sources.gguf.vocabulary_files import TEXTS, byte_file, read

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_loses_nothing(pre: str, tmp_path: Path) -> None:
    """Whatever it cuts, all of the text comes back; where it composes characters, composed."""
    row = PRE_TOKENIZERS[pre]
    tokens = ALPHABET if row.byte_level else ["a", "\u2581", *(f"<0x{byte:02X}>" for byte in range(256))]
    byte_file(pre=pre, tokens=tokens, token_type=None)(tmp_path / "m.gguf")
    _, ours = read(tmp_path / "m.gguf", tmp_path / "out")
    for text in TEXTS:
        wanted = unicodedata.normalize("NFC", text) if row.composes else text
        assert ours.decode(ours.encode(text, False)) == wanted


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_bos_stands_in_front_where_the_family_wants_it(pre: str, tmp_path: Path) -> None:
    """Unless the file says otherwise."""
    for says, wanted in ((None, PRE_TOKENIZERS[pre].adds_bos), (True, True), (False, False)):
        byte_file(pre=pre, bos_token_id=1, add_bos_token=says)(tmp_path / "m.gguf")
        spec, ours = read(tmp_path / "m.gguf", tmp_path / "out")
        assert (spec.add_bos, ours.with_bos((0,))) == (wanted, (1, 0) if wanted else (0,))


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("llama-bpe", "It's 12345 OK\n", ["It", "'s", " ", "123", "45", " OK", "\n"]),
        ("qwen2", "It's 123 OK\n", ["It", "'s", " ", "1", "2", "3", " OK", "\n"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("gpt-2", "It'S 123 ok", ["It", "'", "S", " 123", " ok"]),
        ("smollm", "It's 123 ok", ["It", "'s", " ", "1", "2", "3", " ok"]),
        ("deepseek-coder", "a1 b中文\n", ["a", "1", " b", "中文", "\n"]),
        ("deepseek-v3", "a1234 中文.com", ["a", "123", "4", " ", "中文", ".com"]),
        ("tekken", "HTTPServer 12/\n", ["HTTPServer", " ", "1", "2", "/\n"]),
        ("gpt-4o", "HTTPServer it's 1234", ["HTTPServer", " it's", " ", "123", "4"]),
        ("falcon", "a $1234, it's", ["a", " ", "$", "123", "4", ",", " it", "'", "s"]),
        ("default", "a 12", ["a", " ", "12"]),
        ("deepseek-llm", "a12 \u4e2d\u6587, b", ["a", "1", "2", " ", "\u4e2d\u6587", ",", " b"]),
        ("bloom", "one, two", ["one", ",", " two"]),
        ("viking", "one 12", ["one", " ", "1", "2"]),
        ("tiny_aya", "1234567 x", ["1", "234", "567", " x"]),
        ("superbpe", "to be 1234567", ["to be ", "1", "234", "567"]),
        ("afmoe", "x1234567", ["x", "1", "234", "567"]),
        ("kimi-k2", "\u4e2d\u6587Word 1234", ["\u4e2d\u6587", "Word", " ", "123", "4"]),
        ("bailingmoe", "it's\n\n", ["it", "'s", "\n\n"]),
        ("seed-coder", "a.\n", ["a", ".", "\n"]),
        ("minicpm5", "12345", ["123", "45"]),
        ("exaone-moe", "one two 12", ["one two", " ", "1", "2"]),
        ("chameleon", "a  12!)", ["a", "  ", "1", "2", "!", ")"]),
        ("jais-2", "a    b", ["a", "  ", " ", " b"]),
        ("laguna", "a\n\n b", ["a", "\n\n", " b"]),
        ("ufakzeka", "it's", ["it", "'s"]),
        ("spark2_5", "a.\n\n", ["a", ".", "\n", "\n"]),
        ("youtu", "\ud55c\uad6d HTTPServer 12", ["\ud55c\uad6d", " HTTPServer", " ", "1", "2"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
    ],
)
def test_pieces(pre: str, text: str, pieces: list[str], tmp_path: Path) -> None:
    """What may be merged, by hand from the published patterns."""
    byte_file(pre=pre, tokens=ALPHABET, token_type=None)(tmp_path / "m.gguf")
    read(tmp_path / "m.gguf", tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.pre_tokenizer is not None
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in cut] == pieces
