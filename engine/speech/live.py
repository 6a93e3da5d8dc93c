"""Sound, from a file or live: its decoding in a helper, the utterances in it, and which words of a text are settled.
Places are samples since its beginning, 16,000 a second. The same sound is written again each time there is more of it.
Words that two texts in a row begin with are settled (Liu et al. 2020, "Low-latency sequence-to-sequence speech
recognition and translation by partial hypothesis selection": local agreement of two)."""

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineFailure, InvalidRequest
from engine.isolation.helper_pool import Answer, Failure, HelperLimits, HelperPool
from engine.processes import module_command
from engine.speech.audio import CHUNK_SAMPLES, SAMPLE_BYTES, AudioAnswer, AudioOpening, AudioQuestion, SpeechDetector
from engine.speech.log_mel import SAMPLE_RATE, Int16, Resampler, SoundFormat, samples_of

Float32 = NDArray[np.float32]
CHUNK_S = CHUNK_SAMPLES / SAMPLE_RATE  # that one probability stands for
HYSTERESIS = 0.15  # below the threshold, where speech has ended


@dataclass(frozen=True, slots=True)
class Recording:
    """samples: 16,000 a second, -1 to 1. speech: for each 32 ms the probability that somebody speaks, if asked for."""

    samples: Float32
    speech: Float32

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    def cut(self, start_s: float, end_s: float) -> Float32:
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
    start: of the stretch that goes on, in seconds, None = nobody speaks. chunks: that were told of, or went before."""

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
    found: list[Span] = []
    for begin, end in (piece for span in spoken(recording, activity) for piece in _cut(recording, span, longest_s)):
        if found and end - found[-1][0] <= longest_s:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


def _cut(recording: Recording, span: Span, longest_s: float) -> Iterator[Span]:
    """In the second half of a window, where speech is least probable."""
    start, end = span
    while end - start > longest_s:
        first, last = round((start + longest_s / 2) / CHUNK_S), int((start + longest_s) / CHUNK_S)
        best = first + int(np.argmin(recording.speech[first:last]))
        yield start, best * CHUNK_S
        start = best * CHUNK_S
    yield start, end


DECODER = tuple(module_command("engine.speech.audio_helper"))
MOST_SECONDS = 7200.0  # of sound in one file: its samples are 230 MB, which one frame holds
LIMITS = HelperLimits(budget_s=300.0, processes=2, opening_s=20.0)
FULL_SCALE = np.float32(1 / 32768)
FIELD = "file"


class AudioPool(HelperPool):
    """All methods belong to one event loop. label: of log lines."""

    def __init__(self, label: str = "", limits: HelperLimits = LIMITS) -> None:
        opening = msgspec.msgpack.encode(AudioOpening(limits.budget_s, MOST_SECONDS))
        super().__init__("the process that decodes sound", DECODER, opening, _accept, limits, label)

    async def hear(self, data: bytes, finds_speech: bool) -> Recording:
        """The sound of a file. InvalidRequest naming the field, EngineFailure where packages are missing, Busy."""
        answer = await self.ask(msgspec.msgpack.encode(AudioQuestion(data, finds_speech)))
        if answer is Failure.DIED:
            raise InvalidRequest("'file' cannot be decoded within the limits of this server.", FIELD)
        if isinstance(answer, Failure):
            raise InvalidRequest(f"'file' cannot be decoded within {self._budget_s:g} s.", FIELD)
        return await asyncio.to_thread(_heard, answer)  # two hours are half a gigabyte


def _accept(answer: Answer) -> None:
    if isinstance(answer, Failure):
        raise EngineFailure(f"The process that decodes sound cannot be used: {answer.value}.")
    if error := msgspec.msgpack.decode(answer, type=AudioAnswer).error:
        raise EngineFailure(f"This server cannot transcribe: {error}.")


def _heard(answer: bytes) -> Recording:
    found = msgspec.msgpack.decode(answer, type=AudioAnswer)
    if found.error:
        raise InvalidRequest(f"'file' cannot be used: {found.error}.", FIELD)
    samples: NDArray[np.float32] = np.frombuffer(found.samples, "<i2") * FULL_SCALE
    return Recording(samples, np.frombuffer(found.speech, "<f4"))


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
        return self.first + len(self._samples) // SAMPLE_BYTES

    @property
    def chunks(self) -> int:
        return self.first // CHUNK_SAMPLES + len(self._speech)

    def append(self, samples: Int16, speech: Float32) -> None:
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
    name: of the item that is made of it."""

    name: str
    start: int
    needed: int
    end: int | None = None


Piece = tuple[int, bytes]  # a token and what it says


def settled(before: Sequence[Piece], now: Sequence[Piece], has_spaces: bool) -> int:
    """How many tokens at the beginning of `now` are settled: those of whole words that `before` begins with as well.
    has_spaces: a word has ended where the next token begins with a space; else where a character has."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False)))
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
    return b"".join(each for _, each in pieces).decode("utf-8", "replace")
