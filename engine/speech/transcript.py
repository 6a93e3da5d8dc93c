"""From the tokens of a window to segments with times, and whether they can be trusted (Radford et al. 2022, s. 4.5)."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
        """How much shorter the text is compressed; what repeats itself is."""
        return compression_of(self.text)

    @property
    def is_silence(self) -> bool:
        """Whether nobody speaks."""
        return self.no_speech > SILENCE and self.mean_logprob < LEAST_LOGPROB

    @property
    def is_trusted(self) -> bool:
        """Whether no higher temperature is worth a try."""
        return self.is_silence or (self.compression <= MOST_COMPRESSION and self.mean_logprob >= LEAST_LOGPROB)


def best_of(windows: Sequence[WindowText]) -> WindowText:
    """The most probable text of a window, of those that do not repeat themselves if there are any."""
    plain = [window for window in windows if window.compression <= MOST_COMPRESSION]
    return max(plain or windows, key=lambda window: window.mean_logprob)


@dataclass(frozen=True, slots=True)
class Timed:
    """Tokens of one segment without its times, and as `written`, with them; seconds from the start of the window."""

    start: float
    end: float
    tokens: tuple[int, ...]
    written: tuple[int, ...]


def compression_of(text: str) -> float:
    """Bytes of a text over bytes of it compressed."""
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw))


def segments(tokens: Sequence[int], first_time: int, window_s: float) -> tuple[list[Timed], float]:
    """The segments of a window, and how far the next one begins behind its start.

    Segments that are closed by a pair of times count; what stands behind the last pair belongs to the next window,
    unless the text ends with a single time: then the window has ended as well.
    """
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
