"""Words alone tell how a text is cut."""

from engine.speech.special_tokens import joined


def test_words_are_spelled_and_joined_in_the_order_in_which_they_came() -> None:
    words = [bytes((byte,)) for byte in b"abn "] + [b"an", b" b", b"ban", b" ban", b"nab"]
    assert joined(words) == [(b"a", b"n"), (b" ", b"b"), (b"b", b"an"), (b" b", b"an")]
