"""Where a recording is cut: into stretches in which somebody speaks, each short enough for one window."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.speech.log_mel import SAMPLE_RATE

Float32 = NDArray[np.float32]
CHUNK_S = 512 / SAMPLE_RATE  # that one probability stands for
HYSTERESIS = 0.15  # below the threshold, where speech has ended


@dataclass(frozen=True, slots=True)
class Recording:
    """samples: 16,000 a second, -1 to 1. speech: for each 32 ms the probability that somebody speaks, if asked for."""

    samples: Float32
    speech: Float32

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / SAMPLE_RATE

    def cut(self, start_s: float, end_s: float) -> Float32:
        """The samples between two times."""
        return self.samples[round(start_s * SAMPLE_RATE) : round(end_s * SAMPLE_RATE)]


@dataclass(frozen=True, slots=True)
class VoiceActivity:
    """When somebody speaks. threshold: least probability. padding_s: kept around. silence_s: that ends a stretch."""

    threshold: float = 0.5
    padding_s: float = 0.3
    silence_s: float = 0.2


Span = tuple[float, float]  # seconds


class SpeechEdges:
    """Where stretches of speech begin and end, told by one probability after the other.

    start: of the stretch that goes on, in seconds; None while nobody speaks. chunks: that were told of, or went before.
    """

    def __init__(self, activity: VoiceActivity, chunks: int = 0) -> None:
        self.start: float | None = None
        self._activity = activity
        self.chunks = chunks
        self._silent_s = 0.0

    def take(self, probability: float) -> Span | None:
        """A stretch that has now ended: after `silence_s`, which do not belong to it."""
        self.chunks += 1
        if probability >= self._activity.threshold:
            self.start = (self.chunks - 1) * CHUNK_S if self.start is None else self.start
            self._silent_s = 0.0
        elif self.start is not None and probability < self._activity.threshold - HYSTERESIS:
            self._silent_s += CHUNK_S
            if self._silent_s >= self._activity.silence_s:
                ended = self.start, self.chunks * CHUNK_S - self._silent_s
                self.reset()
                return ended
        return None

    def reset(self) -> None:
        """Nobody speaks."""
        self.start, self._silent_s = None, 0.0


def spoken(recording: Recording, activity: VoiceActivity) -> list[Span]:
    """The stretches of speech, with their padding; they do not overlap."""
    edges = SpeechEdges(activity)
    found = [span for probability in recording.speech.tolist() if (span := edges.take(probability)) is not None]
    if edges.start is not None:
        found.append((edges.start, recording.seconds))
    padded: list[Span] = []
    for first, last in found:
        begin, end = max(0.0, first - activity.padding_s), min(recording.seconds, last + activity.padding_s)
        if padded and begin <= padded[-1][1]:
            padded[-1] = (padded[-1][0], end)
        else:
            padded.append((begin, end))
    return padded


def windows(recording: Recording, activity: VoiceActivity, longest_s: float) -> list[Span]:
    """Neighbouring stretches together in windows of at most `longest_s`; a longer one is cut where it is quietest."""
    pieces = [piece for span in spoken(recording, activity) for piece in _cut(recording, span, longest_s)]
    return list(_joined(pieces, longest_s))


def _joined(pieces: Sequence[Span], longest_s: float) -> Iterator[Span]:
    start, end = None, 0.0
    for begin, stop in pieces:
        if start is not None and stop - start > longest_s:
            yield start, end
            start = None
        start, end = begin if start is None else start, stop
    if start is not None:
        yield start, end


def _cut(recording: Recording, span: Span, longest_s: float) -> Iterator[Span]:
    """In the second half of a window, where speech is least probable."""
    start, end = span
    while end - start > longest_s:
        first, last = round((start + longest_s / 2) / CHUNK_S), int((start + longest_s) / CHUNK_S)
        best = first + int(np.argmin(recording.speech[first:last]))
        yield start, best * CHUNK_S
        start = best * CHUNK_S
    yield start, end
