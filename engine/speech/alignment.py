"""When each word of a text is said: tokens follow the frames that they look at (Whisper's own `timing.py`).
Shapes: A heads that follow the speech, N tokens, T positions of the encoder, 20 ms each."""

import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

MOST_COMPRESSION, LEAST_LOGPROB, SILENCE = 2.4, -1.0, 0.6
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
FREE_TEMPERATURE = 0.5  # what was drawn above it is no context for what follows
STEP_S = 0.02  # that one position of the encoder, and one token of a time, stands for


@dataclass(frozen=True, slots=True)
class WindowText:
    """What was written for a window. tokens: without the end. logprobs: of each. no_speech: probability of silence."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    temperature: float
    no_speech: float

    @property
    def mean_logprob(self) -> float:
        """Of a token, the end counted as one."""
        return sum(self.logprobs) / max(1, len(self.logprobs))

    @property
    def compression(self) -> float:
        """Bytes of the text over bytes of it compressed; of what repeats itself many."""
        return len(self.text.encode()) / len(zlib.compress(self.text.encode()))

    @property
    def is_silence(self) -> bool:
        return self.no_speech > SILENCE and self.mean_logprob < LEAST_LOGPROB

    @property
    def is_trusted(self) -> bool:
        """Whether no higher temperature is worth a try."""
        return self.is_silence or (self.compression <= MOST_COMPRESSION and self.mean_logprob >= LEAST_LOGPROB)


def best_of(windows: Sequence[WindowText]) -> WindowText:
    """The most probable text of several temperatures; one that does not repeat itself if there is any."""
    plain = [window for window in windows if window.compression <= MOST_COMPRESSION]
    return max(plain or windows, key=lambda window: window.mean_logprob)


@dataclass(frozen=True, slots=True)
class Timed:
    """Tokens of one segment without its times, and as `written`, with them; seconds from the start of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]
    written: tuple[int, ...]


def segments(tokens: Sequence[int], first_time: int, window_s: float) -> tuple[list[Timed], float]:
    """The segments of a window, and how far the next one begins behind its start.
    Segments that are closed by a pair of times count; what stands behind the last pair belongs to the next window,
    unless the text ends with a single time: then the window has ended as well."""
    times = [token >= first_time for token in tokens]
    ends_single = len(tokens) >= 2 and times[-1] and not times[-2]
    pairs = [place for place in range(1, len(tokens)) if times[place] and times[place - 1]]
    if not pairs:
        said = [token for token in tokens if token >= first_time]
        end = _seconds(said[-1], first_time) if said and said[-1] != first_time else window_s
        start = _seconds(tokens[0], first_time) if tokens and times[0] else 0.0
        return _timed(tokens, first_time, min(start, end), min(end, window_s)), window_s
    cuts = [*pairs, len(tokens)] if ends_single else pairs
    found: list[Timed] = []
    begin = 0
    for cut in cuts:
        piece = tokens[begin:cut]
        start, end = (min(_seconds(token, first_time), window_s) for token in (piece[0], piece[-1]))
        found += _timed(piece, first_time, start, end)
        begin = cut
    advance = window_s if ends_single else _seconds(tokens[begin - 1], first_time)
    return found, min(advance, window_s) if advance > 0 else window_s


def _timed(tokens: Sequence[int], first_time: int, start: float, end: float) -> list[Timed]:
    words = tuple(token for token in tokens if token < first_time)
    return [Timed(start, max(start, end), words, tuple(tokens))] if words else []


def _seconds(token: int, first_time: int) -> float:
    return max(0, token - first_time) * STEP_S


def shares_of(raw: bytes) -> list[float]:
    """The probability of each token, of its float32 logits as bytes."""
    logits = np.frombuffer(raw, "<f4").astype(np.float64)
    shares = np.exp(logits - logits.max())
    found: list[float] = (shares / shares.sum()).tolist()
    return found


Float32 = NDArray[np.float32]
Indices = NDArray[np.int64]
FILTER = 7  # positions whose median smooths what a head looks at
# Exchanges that bring the median of seven to place 3 (Devillard, "Fast median search", 1998).
NETWORK = ((0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4))
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
SENTENCE_ENDS = ".。!！?？"
LONGEST_MEDIAN_S = 0.7
TOGETHER, TOKEN, FRAME = 0, 1, 2  # which of both goes on


@dataclass(frozen=True, slots=True)
class Word:
    """Seconds from the start of the window. text: with the space before it. tokens: how many it has."""

    text: str
    start: float
    end: float
    tokens: int


def words_of(pieces: Sequence[bytes], scores: Float32, before: int, positions: int, has_spaces: bool) -> list[Word]:
    """The words of a text. pieces: the bytes of its tokens. positions: of the encoder that have heard sound.
    scores [A, N, T]: what each token makes of each position, before the softmax: those `before` the text, the one that
    says there are no times, the text, its end. has_spaces: between words."""
    texts = _whole_characters(pieces)
    grouped = _joined(texts) if has_spaces else texts
    if not grouped:
        return []
    tokens, frames = warped(-seen(scores[:, :, :positions])[before:-1])
    starts = frames[np.diff(tokens, prepend=-1) > 0] * STEP_S
    edges = starts[[0, *accumulate(count for _, count in grouped)]].tolist()
    spans = zip(grouped, pairwise(edges), strict=True)
    return _with_punctuation(_shortened([Word(text, *span, count) for (text, count), span in spans]))


def scores_of(raw: bytes, heads: int, positions: int) -> Float32:
    """[A, N, T] of its float32 numbers as bytes."""
    return np.frombuffer(raw, "<f4").reshape(heads, -1, positions)


def seen(scores: Float32) -> Float32:
    """[A, N, T] -> how much more than other tokens each looks at a position, the mean of all heads [N, T]."""
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    deviation = shares.std(axis=-2, keepdims=True)
    shares = (shares - shares.mean(axis=-2, keepdims=True)) / np.where(deviation == 0, 1, deviation)
    if shares.shape[-1] <= FILTER // 2:
        return np.asarray(shares.mean(axis=0))
    return np.asarray(np.mean([_smooth(head) for head in shares], axis=0))


def _smooth(head: Float32) -> Float32:
    """The median of each position and its neighbours [N, T]."""
    side, columns = FILTER // 2, head.shape[-1]
    padded = np.pad(head, ((0, 0), (side, side)), mode="reflect")
    ranked = [padded[:, place : place + columns] for place in range(FILTER)]
    for low, high in NETWORK:
        first, second = ranked[low], ranked[high]
        ranked[low], ranked[high] = np.minimum(first, second), np.maximum(first, second)
    return ranked[side]


def warped(costs: Float32) -> tuple[Indices, Indices]:
    """The cheapest path through costs [N, T] on which tokens and frames only go on: the token and the frame of each
    step (dynamic time warping, Sakoe and Chiba 1978). Diagonals are made whole, each from the two before it."""
    rows, columns = costs.shape
    steps = np.full((rows + 1, columns + 1), FRAME, np.int8)
    steps[:, 0] = TOKEN
    before = np.full(rows + 1, np.inf, np.float32)
    last = before.copy()
    before[0] = 0.0  # of the diagonal of (0, 0)
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        both, token, frame = before[i - 1], last[i - 1], last[i]
        step = np.where(
            (both < token) & (both < frame), TOGETHER, np.where((token < both) & (token < frame), TOKEN, FRAME)
        )
        fresh = np.full(rows + 1, np.inf, np.float32)
        fresh[i] = costs[i - 1, diagonal - i - 1] + np.choose(step, (both, token, frame))
        steps[i, diagonal - i] = step
        before, last = last, fresh
    return _traced(steps)


def _traced(steps: NDArray[np.int8]) -> tuple[Indices, Indices]:
    i, j = steps.shape[0] - 1, steps.shape[1] - 1
    path = []
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        step = steps[i, j]
        i, j = i - (step != FRAME), j - (step != TOKEN)
    found = np.array(path[::-1], np.int64)
    return found[:, 0], found[:, 1]


def _whole_characters(pieces: Sequence[bytes]) -> list[tuple[str, int]]:
    """Texts of as few tokens as hold whole characters, and how many those are."""
    found, held, count = list[tuple[str, int]](), b"", 0
    for number, piece in enumerate(pieces):
        held, count = held + piece, count + 1
        text = held.decode("utf-8", "replace")
        if "\ufffd" not in text or number == len(pieces) - 1:
            found.append((text, count))
            held, count = b"", 0
    return found


def _joined(texts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """A word begins with a space; punctuation stands alone."""
    found: list[tuple[str, int]] = []
    for text, count in texts:
        if not found or text.startswith(" ") or text.strip() in string.punctuation:
            found.append((text, count))
        else:
            found[-1] = found[-1][0] + text, found[-1][1] + count
    return found


def _shortened(words: Sequence[Word]) -> list[Word]:
    """A word beside a pause lasts as long as the pause; twice the median is left at the start and around sentences."""
    lengths = [word.end - word.start for word in words if word.end > word.start]
    most = 2 * min(LONGEST_MEDIAN_S, float(np.median(lengths))) if lengths else 0.0
    found = list(words)
    found[0] = replace(found[0], start=max(found[0].start, found[0].end - most))
    for index, (before, word) in enumerate(pairwise(words), 1):
        if word.end - word.start <= most:
            continue
        if word.text in SENTENCE_ENDS:
            found[index] = replace(word, end=word.start + most)
        elif before.text in SENTENCE_ENDS:
            found[index] = replace(word, start=word.end - most)
    return found


def _with_punctuation(words: Sequence[Word]) -> list[Word]:
    """Marks that open go to the word behind them, those that close to the one before; the times are that word's."""
    found: list[Word] = []
    for word in reversed(words):
        if found and word.text.startswith(" ") and word.text.strip() in OPENING:
            found[-1] = replace(found[-1], text=word.text + found[-1].text, tokens=word.tokens + found[-1].tokens)
        else:
            found.append(word)
    merged: list[Word] = []
    for word in reversed(found):
        if merged and word.text in CLOSING and not merged[-1].text.endswith(" "):
            merged[-1] = replace(merged[-1], text=merged[-1].text + word.text, tokens=merged[-1].tokens + word.tokens)
        else:
            merged.append(word)
    return merged
