"""The forms of a transcript: JSON with and without segments, plain text, two kinds of subtitles, events."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from engine.request import TextLogprob
from engine.speech.languages import language_name
from server.generation.transcription import Spoken
from server.http.fields import Answer


class DurationUsage(Answer, kw_only=True):
    """Seconds of sound, rounded up."""

    type: Literal["duration"] = "duration"
    seconds: int


class SpeechLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int]


class Transcription(Answer, kw_only=True):
    text: str
    logprobs: list[SpeechLogprob] | UnsetType = UNSET
    usage: DurationUsage


class TranscriptionSegment(Answer, kw_only=True):
    """Seconds of the recording; the last four are of the window that it was written in."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptionWord(Answer):
    """Seconds of the recording."""

    word: str
    start: float
    end: float


class VerboseTranscription(Answer, kw_only=True):
    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    segments: list[TranscriptionSegment] | UnsetType = UNSET
    words: list[TranscriptionWord] | UnsetType = UNSET
    usage: DurationUsage


class TranscriptDelta(Answer, kw_only=True):
    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str
    logprobs: list[SpeechLogprob] | UnsetType = UNSET


class TranscriptDone(Answer, kw_only=True):
    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    logprobs: list[SpeechLogprob] | UnsetType = UNSET
    usage: DurationUsage


def text_of(segments: Sequence[Spoken]) -> str:
    return "".join(segment.text for segment in segments).strip()


def usage_of(seconds: float) -> DurationUsage:
    return DurationUsage(seconds=int(-(-seconds // 1)))


def logprobs_of(segments: Sequence[Spoken]) -> list[SpeechLogprob]:
    return [logprob_of(score) for segment in segments for score in segment.logprobs]


def verbose(
    segments: Sequence[Spoken],
    seconds: float,
    language: str,
    translates: bool,
    granularities: Sequence[str],
) -> VerboseTranscription:
    """granularities: "segment", "word" or both: which times it tells."""
    listed = [
        TranscriptionSegment(
            id=number,
            seek=round(100 * segment.seek),
            start=round(segment.start, 2),
            end=round(segment.end, 2),
            text=segment.text,
            tokens=list(segment.written),
            temperature=segment.window.temperature,
            avg_logprob=segment.window.mean_logprob,
            compression_ratio=segment.window.compression,
            no_speech_prob=segment.window.no_speech,
        )
        for number, segment in enumerate(segments)
    ]
    words = [
        TranscriptionWord(word.text.strip(), round(word.start, 2), round(word.end, 2))
        for segment in segments
        for word in segment.words
    ]
    return VerboseTranscription(
        task="translate" if translates else "transcribe",
        language=language_name(language),
        duration=round(seconds, 3),
        text=text_of(segments),
        segments=listed if "segment" in granularities else UNSET,
        words=words if "word" in granularities else UNSET,
        usage=usage_of(seconds),
    )


def srt(segments: Sequence[Spoken]) -> str:
    blocks = (
        f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{segment.text.strip()}\n"
        for number, segment in enumerate(segments, 1)
    )
    return "\n".join(blocks)


def vtt(segments: Sequence[Spoken]) -> str:
    """WebVTT subtitles (w3.org/TR/webvtt1): an arrow in a text would end its cue."""
    blocks = (
        f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{segment.text.strip().replace('-->', '->')}\n"
        for segment in segments
    )
    return "WEBVTT\n\n" + "\n".join(blocks)


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def logprob_of(score: TextLogprob) -> SpeechLogprob:
    return SpeechLogprob(score.token, score.logprob, list(score.token_bytes))
