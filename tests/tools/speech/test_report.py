"""Wrong words are counted by hand; the table says which bars are missed."""

import pytest

from engine.compile.check.parity import Interval
from tools.speech.report import Listener, Sound, table, wrong_words


@pytest.mark.parametrize(
    ("said", "written", "language", "wrong"),
    [
        ("The cat sat.", "the cat sat", "en", 0),
        ("nearly forty years", "nearly 40 years", "en", 0),
        ("one cat sat down", "the cat down there", "en", 3),
        ("a b c", "", "en", 3),
        ("Marque su numero.", "marque su número", "es", 0),
        ("solo forty", "solo 40", "es", 1),
    ],
)
def test_wrong_words(said: str, written: str, language: str, wrong: int) -> None:
    assert wrong_words(said, written, language)[0] == wrong


def test_bars() -> None:
    """Of each folder where all that is likely misses it, of all as they are; whisper.cpp need not hear all."""
    own = Listener({"programs": [6, 6], "a person": [10, 0], "alike": [4, 2]}, [5.0, 6.0], [10.0, 10.0])
    other = Listener({"programs": [5, 5], "a person": [0, 9], "alike": [4, 2]}, [10.0, 10.0], [12.0, 12.0])
    third = Listener({"programs": [25, 25]}, [2.0])
    said = Sound({"programs": [50, 50], "a person": [50, 50], "alike": [50, 50]}, 50.0, 100.0)
    written = table(own, other, third, said, {"int8": Interval(0.01, 0.009, 0.011)}).splitlines()
    assert written[2:5] == [
        "| wrong words of programs, % | 12.00 | 10.00 | 50.00 | +2.00 (+2.00 to +2.00) points | <= 0.5 | missed |",
        "| wrong words of a person, % | 10.00 | 9.00 |  | +1.00 (-18.00 to +20.00) points | <= 0.5 |  |",
        "| wrong words of alike, % | 6.00 | 6.00 |  | +0.00 (+0.00 to +0.00) points | <= 0.5 |  |",
    ]
    assert written[5].startswith("| wrong words of all, % | 9.33 | 8.33 |  | +1.00 (")
    assert written[5].endswith(" | <= 0.5 | missed |")
    assert written[6:] == [
        "| seconds for one of sound | 0.1100 | 0.2000 | 0.0400 | 0.55 | <= 1.0 |  |",
        "| 4 at once, seconds of sound in one | 10.0 | 8.3 |  | 1.20 | >= 1.5 | missed |",
        "| KL of int8 from float32, nats (95 %) | 0.01000 (0.00900 to 0.01100) |  |  |  |  |  |",
    ]
