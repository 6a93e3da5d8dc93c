"""Words and their times are those of transformers' own functions for token timestamps."""

import numpy as np
import pytest

from engine.speech.alignment import seen, warped, words_of


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 9), (6, 40), (40, 6), (60, 200)])
def test_path_is_that_of_transformers(rows: int, columns: int) -> None:
    from transformers.models.whisper.generation_whisper import _dynamic_time_warping

    costs = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    costs[::3] = costs.round()[::3]  # ties
    for found, wanted in zip(warped(costs), _dynamic_time_warping(costs), strict=True):
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("columns", [2, 50])
def test_what_is_seen_is_that_of_transformers(columns: int) -> None:
    import torch
    from transformers.models.whisper.generation_whisper import _median_filter

    scores = np.random.default_rng(1).normal(size=(3, 7, columns)).astype(np.float32)
    shares = torch.tensor(scores).softmax(-1)
    std, mean = torch.std_mean(shares, dim=-2, keepdim=True, unbiased=False)
    wanted = _median_filter((shares - mean) / std, 7).mean(dim=0)
    assert np.abs(seen(scores) - wanted.numpy()).max() < 1e-4


def diagonal(places: list[int], columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Token n looks at the positions from places[n] on, up to those of the next one [1, N, columns]."""
    scores = np.zeros((1, len(places), columns), np.float32)
    for row, (start, end) in enumerate(zip(places, [*places[1:], columns], strict=True)):
        scores[0, row, start:end] = 20.0
    return scores


def test_words_with_their_marks() -> None:
    """One token before the text, and the one that says there are no times, which sees the first token of the text."""
    pieces = [b" Hello", b",", b" w", b"orld", b".", b" (", b"So", b")"]
    places = [0, 0, 50, 60, 80, 100, 120, 140, 160, 170]
    found = words_of(pieces, diagonal([*places, 190], 200), 1, 200, has_spaces=True)
    assert [(word.text, word.tokens) for word in found] == [(" Hello,", 2), (" world.", 3), (" (So)", 3)]
    assert all(word.start <= word.end for word in found)
    assert found[1].start == pytest.approx(1.2, abs=0.1)
    assert words_of([], diagonal([0, 0, 9], 20), 1, 20, has_spaces=True) == []


def test_characters_of_several_tokens() -> None:
    """Without spaces each character is a word; bytes of one stay together."""
    raw = "日本".encode()
    found = words_of([raw[:2], raw[2:3], raw[3:]], diagonal([0, 0, 10, 20, 25, 30], 40), 1, 40, has_spaces=False)
    assert [(word.text, word.tokens) for word in found] == [("日", 2), ("本", 1)]
