"""Which words of a text that is written while somebody speaks are settled.

The same sound is written again each time there is more of it. Words that two texts in a row begin with are settled
(Liu et al. 2020, "Low-latency sequence-to-sequence speech recognition and translation by partial hypothesis
selection": local agreement of two).
"""

from collections.abc import Sequence

Piece = tuple[int, bytes]  # a token and what it says


def settled(before: Sequence[Piece], now: Sequence[Piece], has_spaces: bool) -> int:
    """How many tokens at the beginning of `now` are settled: those of whole words that `before` begins with as well.

    has_spaces: a word has ended where the next token begins with a space; else where a character has.
    """
    same = 0
    while same < min(len(before), len(now)) and before[same] == now[same]:
        same += 1
    while same and not _ends_word(now, same, has_spaces):
        same -= 1
    return same


def _ends_word(pieces: Sequence[Piece], count: int, has_spaces: bool) -> bool:
    if has_spaces:
        return count < len(pieces) and pieces[count][1].startswith(b" ")
    try:
        b"".join(said for _, said in pieces[:count]).decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of_pieces(pieces: Sequence[Piece]) -> str:
    """The text of tokens."""
    return b"".join(each for _, each in pieces).decode("utf-8", "replace")
