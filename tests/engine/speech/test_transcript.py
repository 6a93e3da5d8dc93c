"""Tokens with times become segments; expected ones are counted by hand after Whisper's own rules."""

from itertools import pairwise

import numpy as np
import pytest

from engine.speech.alignment import WindowText, best_of, segments
from engine.speech.live import CHUNK_S, Recording, VoiceActivity, spoken, windows

T = 1000  # the token of the time 0; one step is 0.02 s


@pytest.mark.parametrize(
    ("tokens", "found", "advance"),
    [
        ([T, 1, 2, T + 100], [(0, 2, (1, 2))], 30),
        ([T, 1, T + 50, T + 50, 2, T + 100], [(0, 1, (1,)), (1, 2, (2,))], 30),
        ([T, 1, T + 50, T + 60, 2], [(0, 1, (1,))], 1),
        ([T, 1, T + 50, T + 60, 2, T + 80, T + 80], [(0, 1, (1,)), (1.2, 1.6, (2,))], 1.6),
        ([T + 10, 1, 2], [(0.2, 0.2, (1, 2))], 30),
        ([1, 2], [(0, 30, (1, 2))], 30),
        ([T, T + 50, T + 50], [], 1),
        ([], [], 30),
    ],
)
def test_segments(tokens: list[int], found: list[tuple[float, float, tuple[int, ...]]], advance: float) -> None:
    made, ahead = segments(tokens, T, 30.0)
    assert [(each.start, each.end, each.tokens) for each in made] == [
        (pytest.approx(start), pytest.approx(end), said) for start, end, said in found
    ]
    assert all(tuple(token for token in each.written if token < T) == each.tokens for each in made)
    assert ahead == pytest.approx(advance)


def test_what_is_trusted() -> None:
    def window(text: str, logprob: float, no_speech: float = 0.0) -> WindowText:
        return WindowText((1,), (logprob,), text, 0.0, no_speech)

    assert window("A plain sentence.", -0.3).is_trusted
    assert not window("again " * 40, -0.3).is_trusted
    assert not window("A plain sentence.", -1.5).is_trusted
    assert window("A plain sentence.", -1.5, no_speech=0.9).is_silence
    assert not window("A plain sentence.", -0.3, no_speech=0.9).is_silence


def test_the_best_of_several() -> None:
    def window(text: str, logprob: float) -> WindowText:
        return WindowText((1,), (logprob,), text, 0.0, 0.0)

    drawn = [window("again " * 40, -0.1), window("A plain sentence.", -2.0), window("Another sentence.", -1.5)]
    assert best_of(drawn) is drawn[2]
    assert best_of(drawn[:1]) is drawn[0]


def recording(*runs: tuple[float, float]) -> Recording:
    """Runs of (seconds, probability)."""
    speech = np.concatenate([np.full(round(seconds / CHUNK_S), value, np.float32) for seconds, value in runs])
    return Recording(np.zeros(len(speech) * 512, np.float32), speech)


def test_stretches_of_speech() -> None:
    made = spoken(recording((2, 0), (3, 0.9), (2, 0.1), (1, 0.8)), VoiceActivity(padding_s=0.25))
    assert [(round(start, 1), round(end, 1)) for start, end in made] == [(1.7, 5.2), (6.7, 8.0)]
    assert spoken(recording((5, 0.2)), VoiceActivity()) == []


def test_windows_are_short_enough() -> None:
    long = recording((40, 0.9), (1, 0.0), (20, 0.9), (3, 0.0), (5, 0.9))
    made = windows(long, VoiceActivity(), 30.0)
    assert all(end - start <= 30.0 for start, end in made)
    assert made[0][0] == 0
    assert made[-1][1] == pytest.approx(long.seconds)
    assert all(before[1] <= after[0] for before, after in pairwise(made))
