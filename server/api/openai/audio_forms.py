"""What is sent for a transcription, within bounds, and its forms: JSON, plain text, two kinds of subtitles, events."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType
from pydantic import Field, StringConstraints
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException

from engine.request import TextLogprob
from engine.speech.live import VoiceActivity
from engine.speech.special_tokens import language_name
from server.api.body import CLOSE, BodyLimits, BoundedRequest, BoundedRoute
from server.generation.transcription import Spoken
from server.http.errors import refuse
from server.http.fields import Answer, Body, Name, NotYet

LARGEST_FILE = 25 * 1024 * 1024  # OpenAI's limit
MOST_PARTS, PART_BYTES = 64, 64 * 1024
FORM = "multipart/form-data"
ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
Prompt = Annotated[str, StringConstraints(max_length=8192)]
Code = Annotated[str, StringConstraints(max_length=16)]  # of a language
Codes = Annotated[list[Code], Field(max_length=100)]
Keywords = Annotated[list[Name], Field(max_length=100)]
Milliseconds = Annotated[int, Field(ge=0, le=60_000)]


class ServerVad(Body, strict=False):
    """Where somebody speaks decides where a recording is cut."""

    type: Literal["server_vad"]
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Milliseconds = 200
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5

    @property
    def activity(self) -> VoiceActivity:
        return VoiceActivity(self.threshold, self.prefix_padding_ms / 1000, self.silence_duration_ms / 1000)


class TranslationForm(Body, strict=False):
    """POST /v1/audio/translations, but for its file."""

    model: Name
    prompt: Prompt = ""
    response_format: ResponseFormat = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0


class TranscriptionForm(TranslationForm):
    """POST /v1/audio/transcriptions, but for its file."""

    language: Code = ""
    languages: Codes = Field([])
    keywords: Keywords = Field([])
    timestamp_granularities: Annotated[list[Literal["segment", "word"]], Field(max_length=2)] = Field(["segment"])
    stream: bool = False
    include: Annotated[list[Literal["logprobs"]], Field(max_length=1)] = Field([])
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    known_speaker_names: NotYet = None
    known_speaker_references: NotYet = None

    @property
    def activity(self) -> VoiceActivity | None:
        """Where the recording is to be cut by speech; None = it is not."""
        if isinstance(self.chunking_strategy, ServerVad):
            return self.chunking_strategy.activity
        return None if self.chunking_strategy is None else VoiceActivity()


def check_form(form: TranscriptionForm) -> None:
    """Raise Refusal for fields that do not go together."""
    if form.timestamp_granularities != ["segment"] and form.response_format != "verbose_json":
        message = "'timestamp_granularities' needs 'response_format' to be verbose_json."
        raise refuse(message, "timestamp_granularities", "invalid_value")
    if form.include and form.response_format != "json":
        raise refuse("'include' needs 'response_format' to be json.", "include", "invalid_value")
    if form.stream and form.response_format not in ("json", "text"):
        raise refuse("'stream' needs 'response_format' to be json or text.", "stream", "invalid_value")


@dataclass(frozen=True, slots=True)
class Upload:
    """The file of a form, and its other fields: name[] is in a list, name[key] in an object."""

    data: bytes
    fields: dict[str, Any]


class FormRequest(BoundedRequest):
    """A request whose body is a form of at most so many bytes and parts."""

    def _check_headers(self, limit: int) -> None:
        if self._media_type != FORM:
            raise refuse(f"The Content-Type must be {FORM}.", status=415)
        self._check_length(limit)

    async def upload(self) -> Upload:
        """The parts. Refusal 400, 408, 413 or 415."""
        limits: BodyLimits = self.app.state.body_limits
        await self.bounded_body(max(limits.size_bytes, LARGEST_FILE + PART_BYTES), limits.timeout_s)
        try:
            async with self.form(max_files=1, max_fields=MOST_PARTS, max_part_size=PART_BYTES) as form:
                upload = await _read(form)
        except MultiPartException as error:
            raise refuse(f"The form cannot be read: {error.message}") from None
        if not upload.data:
            raise refuse("Missing required parameter: 'file'.", "file", "missing_required_parameter")
        if len(upload.data) > LARGEST_FILE:
            raise refuse(f"'file' is larger than {LARGEST_FILE} bytes.", "file", status=413, headers=CLOSE)
        return upload


async def _read(form: FormData) -> Upload:
    data, fields = b"", dict[str, Any]()
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            _put(fields, name, value)
        elif name == "file":
            data = await value.read()
        else:
            raise refuse(f"Unknown parameter: '{name[:64]}' is a file.", name[:64], "unknown_parameter")
    strategy = fields.get("chunking_strategy")
    if isinstance(strategy, str) and strategy.startswith("{"):
        with suppress(ValueError, RecursionError):  # what is no JSON is refused as the text that it is
            fields["chunking_strategy"] = json.loads(strategy)
    return Upload(data, fields)


def _put(fields: dict[str, Any], name: str, value: str) -> None:
    """name[] may come again and is a list, name[key] is an entry of an object. Refusal for two values in one place."""
    outer, bracket, key = name.partition("[")
    if bracket and not key.endswith("]"):
        raise refuse(f"Invalid form: '{name[:64]}' does not end in ].", name[:64], "invalid_value")
    into: Any = fields.setdefault(outer, [] if key == "]" else {}) if bracket else fields
    entry = key[:-1] if bracket else outer
    if key == "]" and isinstance(into, list):
        into.append(value)
    elif key != "]" and isinstance(into, dict) and entry not in into:
        into[entry] = value
    else:
        raise refuse(f"Invalid form: '{name[:64]}' comes twice or in two forms.", name[:64], "invalid_value")


class FormRoute(BoundedRoute):
    request_type = FormRequest


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


def said_before(keywords: Sequence[str], prompt: str) -> str:
    """What a Whisper reads before the first window: keywords guide it as the words of a prompt do."""
    return f"{', '.join(keywords)}. {prompt}" if keywords else prompt


def text_of(segments: Sequence[Spoken]) -> str:
    return "".join(segment.text for segment in segments).strip()


def usage_of(seconds: float) -> DurationUsage:
    return DurationUsage(seconds=int(-(-seconds // 1)))


def logprobs_of(segments: Sequence[Spoken], is_asked: bool) -> list[SpeechLogprob] | UnsetType:
    return [logprob_of(score) for segment in segments for score in segment.logprobs] if is_asked else UNSET


def verbose(
    segments: Sequence[Spoken], seconds: float, language: str, translates: bool, granularities: Sequence[str]
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
    said = [word for segment in segments for word in segment.words]
    words = [TranscriptionWord(word.text.strip(), round(word.start, 2), round(word.end, 2)) for word in said]
    return VerboseTranscription(
        task="translate" if translates else "transcribe",
        language="english" if translates else language_name(language),  # of what is written, not of what is said
        duration=round(seconds, 3),
        text=text_of(segments),
        segments=listed if "segment" in granularities else UNSET,
        words=words if "word" in granularities else UNSET,
        usage=usage_of(seconds),
    )


def srt(segments: Sequence[Spoken]) -> str:
    return "\n".join(f"{n}\n{_times(each, ',')}\n{each.text.strip()}\n" for n, each in enumerate(segments, 1))


def vtt(segments: Sequence[Spoken]) -> str:
    """WebVTT subtitles (w3.org/TR/webvtt1): an arrow in a text would end its cue."""
    cues = (f"{_times(each, '.')}\n{each.text.strip().replace('-->', '->')}\n" for each in segments)
    return "WEBVTT\n\n" + "\n".join(cues)


def _times(segment: Spoken, point: str) -> str:
    clocks = []
    for seconds in (segment.start, segment.end):
        minutes, rest = divmod(round(1000 * seconds), 60_000)
        clocks.append(f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}")
    return " --> ".join(clocks)


def logprob_of(score: TextLogprob) -> SpeechLogprob:
    return SpeechLogprob(score.token, score.logprob, list(score.token_bytes))
