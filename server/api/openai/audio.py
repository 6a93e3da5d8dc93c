"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from collections.abc import AsyncIterator
from typing import Any, cast

from fastapi import APIRouter, Request, Response

from engine.errors import HexserveError
from server.api.body import validated
from server.api.openai import audio_forms as forms
from server.api.openai.audio_forms import FORM, TranscriptionForm, TranslationForm, Upload
from server.api.openapi import SEGMENTS, answers
from server.generation.framing import EventStream, frame
from server.generation.launch import server_of, take_model, until_left, written
from server.generation.transcription import SpeechOptions, Spoken, TranscriptionRun
from server.generation.window_writer import check_languages, speech_spec
from server.http.errors import from_engine, openai_body, refuse

UNKNOWN = ("known_speaker_names", "known_speaker_references")  # refused by name
router = APIRouter(route_class=forms.FormRoute)


def _described(form: type[TranslationForm]) -> dict[str, Any]:
    """OpenAPI of the form with its file; lists have their names in forms."""
    fields: dict[str, Any] = {"file": {"type": "string", "format": "binary"}}
    for name, described in form.model_json_schema()["properties"].items():
        if name == "chunking_strategy":
            fields[name] = {"type": "string", "description": "auto, or a server_vad object as JSON"}
        elif name not in UNKNOWN:
            fields[f"{name}[]" if described.get("type") == "array" else name] = described
    schema = {"type": "object", "properties": fields, "required": ["file", "model"]}
    return {"requestBody": {"required": True, "content": {FORM: {"schema": schema}}}}


WHOLE = forms.Transcription | forms.VerboseTranscription


@router.post(
    "/v1/audio/transcriptions",
    response_model=None,
    responses=answers(WHOLE, forms.TranscriptDelta, forms.TranscriptDone, stream=SEGMENTS),
    openapi_extra=_described(TranscriptionForm),
)
async def create_transcription(request: Request) -> Response:
    """What is said in a recording, in its language."""
    upload = await cast(forms.FormRequest, request).upload()
    form = validated(TranscriptionForm, upload.fields)
    forms.check_form(form)
    return await _answer(request, upload, form, translates=False)


@router.post(
    "/v1/audio/translations", response_model=None, responses=answers(WHOLE), openapi_extra=_described(TranslationForm)
)
async def create_translation(request: Request) -> Response:
    """What is said in a recording, in English."""
    upload = await cast(forms.FormRequest, request).upload()
    validated(TranslationForm, upload.fields)
    return await _answer(request, upload, validated(TranscriptionForm, upload.fields), translates=True)


async def _answer(request: Request, upload: Upload, form: TranscriptionForm, translates: bool) -> Response:
    service = await take_model(request, form.model, speech_spec)
    spec = speech_spec(service.engine.info.manifest)
    language, among = check_languages(spec, form.language, form.languages)
    said, has_words = forms.said_before(form.keywords, form.prompt), "word" in form.timestamp_granularities
    options = SpeechOptions(translates, language, said, form.temperature or None, form.activity, has_words, among)
    if has_words and not spec.alignment:
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
    seconds, text = run.recording.seconds, forms.text_of(found)
    match form.response_format:
        case "srt":
            return Response(forms.srt(found), media_type="application/x-subrip")
        case "vtt":
            return Response(forms.vtt(found), media_type="text/vtt")
        case "text":
            return Response(f"{text}\n", media_type="text/plain")
        case "verbose_json":
            return written(forms.verbose(found, seconds, run.writer.language, translates, form.timestamp_granularities))
        case "json":
            logprobs = forms.logprobs_of(found, bool(form.include))
            return written(forms.Transcription(text=text, logprobs=logprobs, usage=forms.usage_of(seconds)))


async def _events(run: TranscriptionRun, has_logprobs: bool) -> AsyncIterator[bytes]:
    found: list[Spoken] = []
    try:
        async for segment in run.segments():
            delta = segment.text if found else segment.text.lstrip()
            found.append(segment)
            yield frame(forms.TranscriptDelta(delta=delta, logprobs=forms.logprobs_of([segment], has_logprobs)))
        text, logprobs = forms.text_of(found), forms.logprobs_of(found, has_logprobs)
        yield frame(forms.TranscriptDone(text=text, logprobs=logprobs, usage=forms.usage_of(run.recording.seconds)))
    except HexserveError as error:
        yield frame(openai_body(from_engine(error)))
