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
    """Of each folder, and none of whisper.cpp, which need not hear all."""
    own = Listener({"programs": 11, "a person": 10}, [5.0, 6.0], [10.0, 10.0])
    other = Listener({"programs": 10, "a person": 10}, [10.0, 10.0], [12.0, 12.0])
    third = Listener({"programs": 50}, [2.0])
    said = Sound({"programs": 100, "a person": 200}, 50.0, 100.0)
    written = table(own, other, third, said, {"int8": Interval(0.01, 0.009, 0.011)}).splitlines()
    assert written[2:] == [
        "| wrong words of programs, % | 11.00 | 10.00 | 50.00 | +1.00 points | <= 0.5 | missed |",
        "| wrong words of a person, % | 5.00 | 5.00 |  | +0.00 points | <= 0.5 |  |",
        "| seconds for one of sound | 0.1100 | 0.2000 | 0.0400 | 0.55 | <= 1.0 |  |",
        "| 4 at once, seconds of sound in one | 10.0 | 8.3 |  | 1.20 | >= 1.5 | missed |",
        "| KL of int8 from float32, nats (95 %) | 0.01000 (0.00900 to 0.01100) |  |  |  |  |  |",
    ]
