"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from collections.abc import AsyncIterator
from typing import Any, cast

from fastapi import APIRouter, Request, Response

from engine.errors import HexserveError
from server.api.body import validated
from server.api.openai.audio_forms import (
    FORM,
    FormRequest,
    FormRoute,
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptionForm,
    TranslationForm,
    Upload,
    VerboseTranscription,
    check_form,
    logprobs_of,
    said_before,
    srt,
    text_of,
    usage_of,
    verbose,
    vtt,
)
from server.api.openapi import SEGMENTS, answers
from server.generation.framing import EventStream, frame
from server.generation.launch import server_of, take_model, until_left, written
from server.generation.transcription import SpeechOptions, Spoken, TranscriptionRun
from server.generation.window_writer import check_languages, speech_spec
from server.http.errors import from_engine, openai_body, refuse

UNKNOWN = ("known_speaker_names", "known_speaker_references")  # refused by name
router = APIRouter(route_class=FormRoute)
SUBTITLES = {"srt": ("application/x-subrip", srt), "vtt": ("text/vtt", vtt), "text": ("text/plain", text_of)}


def _described(form: type[TranslationForm]) -> dict[str, Any]:
    """OpenAPI of the form with its file; lists have their names in forms."""
    fields = {name: schema for name, schema in form.model_json_schema()["properties"].items() if name not in UNKNOWN}
    if "chunking_strategy" in fields:
        fields["chunking_strategy"] = {"type": "string", "description": "auto, or a server_vad object as JSON"}
    named = {f"{name}[]" if schema.get("type") == "array" else name: schema for name, schema in fields.items()}
    file = {"file": {"type": "string", "format": "binary"}}
    schema = {"type": "object", "properties": file | named, "required": ["file", "model"]}
    return {"requestBody": {"required": True, "content": {FORM: {"schema": schema}}}}


ANSWERS = answers(Transcription | VerboseTranscription)


@router.post(
    "/v1/audio/transcriptions",
    response_model=None,
    responses=answers(Transcription | VerboseTranscription, TranscriptDelta, TranscriptDone, stream=SEGMENTS),
    openapi_extra=_described(TranscriptionForm),
)
async def create_transcription(request: Request) -> Response:
    """What is said in a recording, in its language."""
    upload = await cast(FormRequest, request).upload()
    form = validated(TranscriptionForm, upload.fields)
    check_form(form)
    return await _answer(request, upload, form, translates=False)


@router.post(
    "/v1/audio/translations", response_model=None, responses=ANSWERS, openapi_extra=_described(TranslationForm)
)
async def create_translation(request: Request) -> Response:
    """What is said in a recording, in English."""
    upload = await cast(FormRequest, request).upload()
    validated(TranslationForm, upload.fields)
    return await _answer(request, upload, validated(TranscriptionForm, upload.fields), translates=True)


async def _answer(request: Request, upload: Upload, form: TranscriptionForm, translates: bool) -> Response:
    service = await take_model(request, form.model, speech_spec)
    spec = speech_spec(service.engine.info.manifest)
    language, among = check_languages(spec, form.language, form.languages)
    options = SpeechOptions(
        translates=translates,
        language=language,
        among=among,
        prompt=said_before(form.keywords, form.prompt),
        temperature=form.temperature or None,
        activity=form.activity,
        has_words="word" in form.timestamp_granularities,
    )
    if options.has_words and not spec.alignment:
        message = "'timestamp_granularities' cannot be word: this model does not name the heads that follow the speech."
        raise refuse(message, "timestamp_granularities", "unsupported_value")
    service.admit(1)
    recording = await until_left(request, service.engine.hear(upload.data, form.activity is not None))
    run = TranscriptionRun(service, service.envelope("trsc-"), recording, options)
    if form.stream:
        return EventStream(_events(run, bool(form.include)), server_of(request).settings.keep_alive_s, run.abort)
    try:
        found = await until_left(request, _all(run))
    finally:
        run.abort()
    return _written(found, run, form, translates)


async def _all(run: TranscriptionRun) -> list[Spoken]:
    return [segment async for segment in run.segments()]


def _written(found: list[Spoken], run: TranscriptionRun, form: TranscriptionForm, translates: bool) -> Response:
    seconds = run.recording.seconds
    if form.response_format in SUBTITLES:
        media_type, write = SUBTITLES[form.response_format]
        return Response(write(found) + ("\n" if form.response_format == "text" else ""), media_type=media_type)
    if form.response_format == "verbose_json":
        return written(verbose(found, seconds, run.language, translates, form.timestamp_granularities))
    answer = Transcription(text=text_of(found), usage=usage_of(seconds))
    if form.include:
        answer.logprobs = logprobs_of(found)
    return written(answer)


async def _events(run: TranscriptionRun, has_logprobs: bool) -> AsyncIterator[bytes]:
    found: list[Spoken] = []
    try:
        async for segment in run.segments():
            event = TranscriptDelta(delta=segment.text if found else segment.text.lstrip())
            if has_logprobs:
                event.logprobs = logprobs_of([segment])
            found.append(segment)
            yield frame(event)
        done = TranscriptDone(text=text_of(found), usage=usage_of(run.recording.seconds))
        if has_logprobs:
            done.logprobs = logprobs_of(found)
        yield frame(done)
    except HexserveError as error:
        yield frame(openai_body(from_engine(error)))
