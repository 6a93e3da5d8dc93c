"""What the client of a realtime session may send, and how the session is described: in a newer and an older form."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from engine.bundle.specs import SpeechSpec
from engine.speech.log_mel import SoundFormat
from server.api.body import parse_object
from server.api.openai.audio_forms import Code, Codes, Keywords, Prompt, ServerVad
from server.generation.window_writer import check_languages
from server.http.errors import Refusal, WireError, from_validation
from server.http.fields import Body, Name, NotYet

LONGEST_NAME = 256
Include = Annotated[list[Literal["item.input_audio_transcription.logprobs"]], Field(max_length=1)]


class TurnDetection(ServerVad, strict=True):
    """Silence ends an utterance."""

    silence_duration_ms: Annotated[int, Field(ge=0, le=60_000)] = 500
    create_response: Literal[False] | None = None
    interrupt_response: Literal[False] | None = None
    idle_timeout_ms: NotYet = None


class TranscriptionModel(Body):
    """What writes, and what it is told before. model: None = the one that is there."""

    model: Name | None = None
    language: Code | None = None
    prompt: Prompt | None = None
    delay: NotYet = None
    keywords: Keywords | None = None
    languages: Codes | None = None

    def check_languages(self, spec: SpeechSpec) -> tuple[str, list[str]]:
        return check_languages(spec, self.language or "", self.languages or ())


class Pcm(Body):
    """Signed 16 bit."""

    type: Literal["audio/pcm"]
    rate: Literal[24000] = 24000


class G711(Body):
    """At 8 kHz."""

    type: Literal["audio/pcmu", "audio/pcma"]


class AudioInput(Body):
    format: Annotated[Pcm | G711, Field(discriminator="type")] = Pcm(type="audio/pcm")
    noise_reduction: NotYet = None
    transcription: TranscriptionModel = TranscriptionModel()
    turn_detection: TurnDetection | None = TurnDetection(type="server_vad")

    @property
    def sound_format(self) -> SoundFormat:
        return SOUND_FORMATS[self.format.type]


SOUND_FORMATS = {"audio/pcm": SoundFormat.PCM16, "audio/pcmu": SoundFormat.ULAW, "audio/pcma": SoundFormat.ALAW}
FORMATS: dict[str, Pcm | G711] = {
    "pcm16": Pcm(type="audio/pcm"),
    "g711_ulaw": G711(type="audio/pcmu"),
    "g711_alaw": G711(type="audio/pcma"),
}


class Audio(Body):
    input: AudioInput = AudioInput()


class TranscriptionSession(Body):
    type: Literal["transcription"] = "transcription"
    audio: Audio = Audio()
    include: Include | None = None

    def updated(self, given: "TranscriptionSession") -> "TranscriptionSession":
        """With the fields that are given; the others stay."""
        now, fresh = self.audio.input, given.audio.input
        changes = {name: getattr(fresh, name) for name in fresh.model_fields_set if name != "transcription"}
        told = {name: getattr(fresh.transcription, name) for name in fresh.transcription.model_fields_set}
        made = now.model_copy(update=changes | {"transcription": now.transcription.model_copy(update=told)})
        include = given.include if "include" in given.model_fields_set else self.include
        return TranscriptionSession(audio=Audio(input=made), include=include)


class OldSession(Body):
    input_audio_format: Literal["pcm16", "g711_ulaw", "g711_alaw"] = "pcm16"
    input_audio_noise_reduction: NotYet = None
    input_audio_transcription: TranscriptionModel = TranscriptionModel()
    turn_detection: TurnDetection | None = None
    include: Include | None = None
    modalities: list[Literal["text"]] | None = None
    client_secret: NotYet = None

    @property
    def modern(self) -> TranscriptionSession:
        """The same fields in the form of `session.update`."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        fields = {name: given[name] for name in ("turn_detection",) if name in given}
        if "input_audio_transcription" in given:
            fields["transcription"] = given["input_audio_transcription"]
        if "input_audio_format" in given:
            fields["format"] = FORMATS[given["input_audio_format"]]
        include = {"include": given["include"]} if "include" in given else {}
        return TranscriptionSession(audio=Audio(input=AudioInput(**fields)), **include)


class ClientEvent(Body):
    """Base of what a client sends. event_id: its own name for it."""

    event_id: Annotated[str, StringConstraints(max_length=LONGEST_NAME)] | None = None


class SessionUpdate(ClientEvent):
    """Fields that are not there stay as they are."""

    type: Literal["session.update"]
    session: TranscriptionSession


class OldSessionUpdate(ClientEvent):
    """The same in the older form."""

    type: Literal["transcription_session.update"]
    session: OldSession


class Append(ClientEvent):
    type: Literal["input_audio_buffer.append"]
    audio: str


class Commit(ClientEvent):
    type: Literal["input_audio_buffer.commit"]


class Clear(ClientEvent):
    type: Literal["input_audio_buffer.clear"]


Event = Annotated[SessionUpdate | OldSessionUpdate | Append | Commit | Clear, Field(discriminator="type")]
_EVENTS: TypeAdapter[SessionUpdate | OldSessionUpdate | Append | Commit | Clear] = TypeAdapter(Event)


class BadEvent(Refusal):
    """A client's event cannot be used. event_id: its own name for it, if it has told one."""

    def __init__(self, error: WireError, event_id: str | None) -> None:
        super().__init__(error)
        self.event_id = event_id


def read_event(text: str) -> SessionUpdate | OldSessionUpdate | Append | Commit | Clear:
    """An event of the client; BadEvent naming the field at fault."""
    body: dict[str, Any] = {}
    try:
        body = parse_object(text.encode("utf-8", "surrogatepass"))
        return _EVENTS.validate_python(body)
    except (Refusal, ValidationError) as error:
        name = body.get("event_id")
        told = error.error if isinstance(error, Refusal) else from_validation(error.errors(), body)
        raise BadEvent(told, name if isinstance(name, str) and len(name) <= LONGEST_NAME else None) from None


def described(name: str, session: TranscriptionSession, model: str, is_old: bool) -> dict[str, Any]:
    """The session as the client is told of it, in the form that it uses."""
    given = session.audio.input
    told = given.transcription.model_dump(exclude={"delay"}) | {"model": model}
    turns = given.turn_detection
    detection = turns and turns.model_dump(include={"type", "threshold", "prefix_padding_ms", "silence_duration_ms"})
    own: dict[str, Any] = {"id": name, "object": "realtime.transcription_session", "include": session.include}
    if is_old:
        return own | {
            "input_audio_format": given.sound_format.value,
            "input_audio_noise_reduction": None,
            "input_audio_transcription": told,
            "turn_detection": detection,
        }
    sound = {"format": given.format.model_dump(), "noise_reduction": None}
    return own | {
        "type": "transcription",
        "audio": {"input": sound | {"transcription": told, "turn_detection": detection}},
    }
