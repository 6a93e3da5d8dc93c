"""Incremental detokenisation equals decoding everything at once, and never splits a code point."""

from hypothesis import given
from hypothesis import strategies as st

from engine.text.assembler import Detokenizer
from engine.text.tokenizer import Tokenizer
from tests.engine.tiny_bundle import SPECIALS, byte_level_tokenizer

LIBRARY = byte_level_tokenizer()
TOKENIZER = Tokenizer(LIBRARY.to_str())
RICH = st.text(st.sampled_from("aé€😀👩\u200d👧🏽नमस्ते\u0301한\n ")) | st.text(st.characters(exclude_categories=["Cs"]))


def pieces(ids: list[int], skip_special: bool = True) -> list[str]:
    """What is given out token by token, the flush last."""
    detokenizer = Detokenizer(TOKENIZER, skip_special)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(RICH)
def test_text_comes_back_whole(text: str) -> None:
    given_out = pieces(list(text.encode()))
    assert "".join(given_out) == text
    assert all(piece == "" or piece in text for piece in given_out)
    assert given_out[-1] == ""


@given(st.lists(st.integers(0, TOKENIZER.vocabulary - 1)), st.booleans())
def test_any_tokens_equal_the_librarys_decoding(ids: list[int], skip_special: bool) -> None:
    expected = LIBRARY.decode(ids, skip_special_tokens=skip_special)
    assert "".join(pieces(ids, skip_special)) == expected == TOKENIZER.decode(tuple(ids), skip_special)


@given(st.binary())
def test_any_bytes_equal_decoding_them_at_once(data: bytes) -> None:
    assert "".join(pieces(list(data))) == data.decode("utf-8", "replace")


def test_a_code_point_waits_for_its_last_byte() -> None:
    assert pieces(list("😀".encode())) == ["", "", "", "😀", ""]


def test_an_unfinished_character_becomes_a_replacement_at_the_end_only() -> None:
    assert pieces(list("😀".encode())[:3]) == ["", "", "", "\ufffd"]
    assert pieces([0xE2, ord("a")]) == ["", "\ufffda", ""]


def test_a_special_token_inside_a_character_does_not_break_it() -> None:
    special = LIBRARY.token_to_id(SPECIALS[0])
    first, second = "é".encode()
    assert "".join(pieces([first, special, second])) == "é" == LIBRARY.decode([first, special, second])


def test_what_marks_a_part_of_an_answer_is_text_also_as_a_special_token() -> None:
    hidden, shown = (LIBRARY.token_to_id(token) for token in SPECIALS[:2])
    tokenizer = Tokenizer(LIBRARY.to_str(), markers=(SPECIALS[1],))
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token_id) for token_id in (hidden, shown, 65)] == ["", SPECIALS[1], "A"]
    assert tokenizer.is_special(shown)
