"""The form of a transcription: its parts within bounds, and what its fields may say."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException

from engine.speech.cutting import VoiceActivity
from server.api.body import CLOSE, BodyLimits, BoundedRequest, BoundedRoute
from server.http.errors import refuse
from server.http.fields import Body, Name, NotYet

LARGEST_FILE = 25 * 1024 * 1024  # OpenAI's limit
MOST_PARTS, PART_BYTES = 64, 64 * 1024
FORM = "multipart/form-data"
ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
Prompt = Annotated[str, StringConstraints(max_length=8192)]
Milliseconds = Annotated[int, Field(ge=0, le=60_000)]


class ServerVad(Body, strict=False):
    """Where somebody speaks decides where a recording is cut."""

    type: Literal["server_vad"]
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Milliseconds = 200
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5

    @property
    def activity(self) -> VoiceActivity:
        """In seconds."""
        return VoiceActivity(self.threshold, self.prefix_padding_ms / 1000, self.silence_duration_ms / 1000)


class TranslationForm(Body, strict=False):
    """POST /v1/audio/translations, but for its file."""

    model: Name
    prompt: Prompt = ""
    response_format: ResponseFormat = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0


class TranscriptionForm(TranslationForm):
    """POST /v1/audio/transcriptions, but for its file."""

    language: Annotated[str, StringConstraints(max_length=16)] = ""
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
    whole, plain = form.response_format == "verbose_json", form.response_format in ("json", "text")
    if form.timestamp_granularities != ["segment"] and not whole:
        message = "'timestamp_granularities' needs 'response_format' to be verbose_json."
        raise refuse(message, "timestamp_granularities", "invalid_value")
    if form.include and form.response_format != "json":
        raise refuse("'include' needs 'response_format' to be json.", "include", "invalid_value")
    if form.stream and not plain:
        raise refuse("'stream' needs 'response_format' to be json or text.", "stream", "invalid_value")


@dataclass(frozen=True, slots=True)
class Upload:
    """The file of a form, and its other fields by name: lists where the name ends in [], objects by name[key]."""

    data: bytes
    fields: dict[str, Any]


class FormRequest(BoundedRequest):
    """A request whose body is a form of at most so many bytes and parts."""

    def _check_headers(self, limit: int) -> None:
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise refuse(f"The Content-Type must be {FORM}.", status=415)
        super()._check_length(limit)

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
    return Upload(data, fields)


def _put(fields: dict[str, Any], name: str, value: str) -> None:
    """name[] and a name that comes again are lists, name[key] is an entry of an object, an object may be JSON."""
    outer, bracket, key = name.partition("[")
    if not bracket:
        if outer in fields:
            raise refuse(f"Invalid form: '{name[:64]}' comes twice.", name[:64], "invalid_value")
        fields[outer] = _parsed(value) if value.startswith("{") else value
    elif key == "]":
        fields.setdefault(outer, [])
        if isinstance(fields[outer], list):
            fields[outer].append(value)
    elif key.endswith("]"):
        fields.setdefault(outer, {})
        if isinstance(fields[outer], dict):
            fields[outer][key[:-1]] = value


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


class FormRoute(BoundedRoute):
    request_type = FormRequest
