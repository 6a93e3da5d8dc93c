"""Wrong words are counted by hand; the table says which bars are missed."""

import pytest

from tools.speech.report import Listener, table, wrong_words


@pytest.mark.parametrize(
    ("said", "written", "wrong"),
    [
        ("The cat sat.", "the cat sat", 0),
        ("nearly forty years", "nearly 40 years", 0),
        ("one cat sat down", "the cat down there", 3),
        ("a b c", "", 3),
    ],
)
def test_wrong_words(said: str, written: str, wrong: int) -> None:
    assert wrong_words(said, written)[0] == wrong


def test_bars() -> None:
    own, other = Listener(11, [5.0, 6.0], [10.0, 10.0]), Listener(10, [10.0, 10.0], [12.0, 12.0])
    written = table(own, other, 100, 50.0, 100.0).splitlines()
    assert written[2] == "| wrong words, % | 11.00 | 10.00 | +1.00 points | <= 0.5 | missed |"
    assert written[3] == "| seconds for one of sound | 0.1100 | 0.2000 | 0.55 | <= 1.0 |  |"
    assert written[4].endswith("| 1.20 | >= 1.5 | missed |")
