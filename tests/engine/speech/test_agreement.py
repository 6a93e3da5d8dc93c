"""Which words of two texts in a row are settled."""

import pytest

from engine.speech.live import Piece, settled, text_of_pieces


def pieces(*said: str | bytes) -> list[Piece]:
    """Tokens of these pieces of text, equal where the text is."""
    coded = [each.encode() if isinstance(each, str) else each for each in said]
    return [(sum(each) % 997, each) for each in coded]


CASES = [
    ([], ["a", " b"], True, 0),
    (["He", "llo"], ["He", "llo", " there"], True, 2),
    (["He", "llo"], ["He", "llo"], True, 0),  # the word may go on
    (["He", "llo", " th"], ["He", "llo", " the", "re"], True, 2),
    (["He", "llo", ","], ["He", "llo", ",", " you"], True, 3),
    (["He", "llo"], ["He", "llo", ",", " you"], True, 0),  # before the comma no word has ended
    (["He", "llo"], ["Ha", "llo", " you"], True, 0),
    (["你", "好"], ["你", "好", "吗"], False, 2),
    ([b"\xe4\xbd", b"\xa0", b"\xe5"], [b"\xe4\xbd", b"\xa0", b"\xe5", b"\xa5\xbd"], False, 2),  # half a character
]


@pytest.mark.parametrize(("before", "now", "has_spaces", "count"), CASES)
def test_settled(before: list[str], now: list[str], has_spaces: bool, count: int) -> None:
    assert settled(pieces(*before), pieces(*now), has_spaces) == count


def test_text_of_half_a_character() -> None:
    assert text_of_pieces(pieces("a", b"\xe4\xbd")) == "a�"
