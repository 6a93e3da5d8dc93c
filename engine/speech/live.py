"""Sound that comes live: the utterances in it, and which words of a text that is written meanwhile are settled.

Places are samples since its beginning, 16,000 a second. The same sound is written again each time there is more of it.
Words that two texts in a row begin with are settled (Liu et al. 2020, "Low-latency sequence-to-sequence speech
recognition and translation by partial hypothesis selection": local agreement of two).
"""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.speech.audio import CHUNK_SAMPLES, SAMPLE_BYTES, SpeechDetector
from engine.speech.audio_pool import FULL_SCALE
from engine.speech.cutting import Float32
from engine.speech.pcm import Int16, Resampler, SoundFormat, samples_of


class LiveEar:
    """Makes samples and probabilities of speech of what a client sends; may run in a thread, one call at a time."""

    def __init__(self, form: SoundFormat, detector: SpeechDetector) -> None:
        self.form = form
        self._resampler = Resampler(form.rate)
        self._detector = detector

    def hear(self, data: bytes) -> tuple[Int16, Float32]:
        """Of whole samples: those that can be made so far, and the probability of speech in each whole 512 of them."""
        samples = self._resampler.take(samples_of(data, self.form))
        return samples, self._detector.take(samples.astype("<i2").tobytes())


class LiveSound:
    """What was heard and is still needed: the samples from `first` on, and the probabilities of speech of chunks."""

    def __init__(self) -> None:
        self.first = 0
        self._samples = bytearray()
        self._speech = array("f")
        self._changed = asyncio.Event()

    @property
    def end(self) -> int:
        """Behind the last sample."""
        return self.first + len(self._samples) // SAMPLE_BYTES

    @property
    def chunks(self) -> int:
        """Whole ones since the beginning."""
        return self.first // CHUNK_SAMPLES + len(self._speech)

    def append(self, samples: Int16, speech: Float32) -> None:
        """What came next."""
        self._samples += samples.astype("<i2").tobytes()
        self._speech.extend(speech.tolist())
        self.changed()

    def changed(self) -> None:
        """There is more sound, an utterance has ended, or less of one is needed."""
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that changes with the sound and its utterances."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def cut(self, start: int, end: int) -> Float32:
        """The samples between two places, -1 to 1."""
        raw = bytes(self._samples[(start - self.first) * SAMPLE_BYTES : (end - self.first) * SAMPLE_BYTES])
        return np.frombuffer(raw, "<i2") * FULL_SCALE

    def forget(self, before: int) -> None:
        """Whole chunks before a place are not needed any more."""
        chunks = min((before - self.first) // CHUNK_SAMPLES, len(self._speech))
        if chunks > 0:
            del self._samples[: chunks * CHUNK_SAMPLES * SAMPLE_BYTES]
            del self._speech[:chunks]
            self.first += chunks * CHUNK_SAMPLES

    def quietest(self, start: int, end: int) -> int:
        """Where between two places speech is least probable; `end` where no chunk between them is known."""
        low, high = (-(-(place - self.first) // CHUNK_SAMPLES) for place in (start, end))
        known: NDArray[np.float32] = np.array(self._speech[low:high], np.float32)
        return self.first + (low + int(np.argmin(known))) * CHUNK_SAMPLES if len(known) else end


@dataclass(slots=True)
class Utterance:
    """From its start to its end, which is None until it has ended. needed: sound from there on is still to be written.

    name: of the item that is made of it.
    """

    name: str
    start: int
    needed: int
    end: int | None = None


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
