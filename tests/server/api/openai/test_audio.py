"""Transcriptions and translations in every form, with an engine that says what it is told to."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from engine.errors import EngineFailure, HexserveError
from engine.speech.live import Recording
from engine.speech.log_mel import SAMPLE_RATE
from server.api.openai.audio_forms import LARGEST_FILE
from server.middleware.auth import KeyRing
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME
from tests.server.speaking_engine import EN, TRANSCRIBE, TRANSLATE, SpeakingEngine

SAID = "[0] good day [1.5] [1.5] to you [3.2]"


class HearingEngine(SpeakingEngine):
    """Hears five seconds in whatever is sent."""

    def __init__(self, *texts: str | tuple[str, float] | HexserveError) -> None:
        super().__init__(*texts)
        self.tokenized: list[str] = []

    async def tokenize(self, text: str, add_special: bool) -> tuple[int, ...]:
        self.tokenized.append(text)
        return await super().tokenize(text, add_special)

    async def hear(self, data: bytes, finds_speech: bool) -> Recording:
        assert data == b"sound" and not finds_speech
        return Recording(np.random.default_rng(0).normal(0, 0.1, 5 * SAMPLE_RATE).astype("<f4"), np.zeros(0, "<f4"))


@pytest.fixture
async def engine(settings: Settings) -> HearingEngine:
    return HearingEngine(SAID)


@pytest.fixture
async def app(settings: Settings, engine: HearingEngine) -> FastAPI:
    return create_app(settings, engine, KeyRing())


async def post(client: httpx.AsyncClient, route: str = "transcriptions", **fields: Any) -> httpx.Response:
    files = {"file": ("talk.wav", b"sound")}
    return await client.post(f"/v1/audio/{route}", data={"model": NAME, **fields}, files=files)


async def test_json_says_how_long_was_heard(client: httpx.AsyncClient, engine: HearingEngine) -> None:
    answer = await post(client, language="en")
    assert answer.json() == {"text": "good day to you", "usage": {"type": "duration", "seconds": 5}}
    assert EN in engine.asked[0].prompt_ids and TRANSCRIBE in engine.asked[0].prompt_ids
    assert engine.live == set()


async def test_a_chat_is_told_what_the_model_is_for(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        "/v1/chat/completions", json={"model": NAME, "messages": [{"role": "user", "content": "good day"}]}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model"), answer.text
    assert "writes speech down and answers POST /v1/audio/transcriptions" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("form", "kind", "text"),
    [
        ("text", "text/plain", "good day to you\n"),
        (
            "srt",
            "application/x-subrip",
            "1\n00:00:00,000 --> 00:00:01,500\ngood day\n\n2\n00:00:01,500 --> 00:00:03,200\nto you\n",
        ),
        (
            "vtt",
            "text/vtt",
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\ngood day\n\n00:00:01.500 --> 00:00:03.200\nto you\n",
        ),
    ],
)
async def test_texts(client: httpx.AsyncClient, form: str, kind: str, text: str) -> None:
    answer = await post(client, response_format=form)
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text == text


async def test_verbose_json_has_segments_and_words(client: httpx.AsyncClient) -> None:
    fields: dict[str, Any] = {"timestamp_granularities[]": ["segment", "word"]}
    found = (await post(client, response_format="verbose_json", **fields)).json()
    assert (found["task"], found["language"], found["duration"]) == ("transcribe", "german", 5)
    assert [(each["start"], each["end"], each["text"]) for each in found["segments"]] == [
        (0.0, 1.5, " good day"),
        (1.5, 3.2, " to you"),
    ]
    assert [each["word"] for each in found["words"]] == ["good", "day", "to", "you"]


async def test_a_stream_has_an_event_for_each_segment(client: httpx.AsyncClient, engine: HearingEngine) -> None:
    answer = await post(client, stream="true", **{"include[]": "logprobs"})
    events = [
        json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: {")
    ]
    assert [(each["type"], each.get("delta", each.get("text"))) for each in events] == [
        ("transcript.text.delta", "good day"),
        ("transcript.text.delta", " to you"),
        ("transcript.text.done", "good day to you"),
    ]
    assert [len(each["logprobs"]) for each in events] == [2, 2, 4]
    assert engine.live == set()


async def test_an_error_in_a_stream_is_its_last_event(app: FastAPI, settings: Settings) -> None:
    failing = create_app(settings, HearingEngine(EngineFailure("it broke")), KeyRing())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(failing), base_url="http://server") as client:
        events = (await post(client, stream="true")).text
        assert json.loads(events.split("data: ")[1])["error"]["type"] == "server_error"
        assert (await post(client)).status_code == 500


async def test_a_translation_is_english(client: httpx.AsyncClient, engine: HearingEngine) -> None:
    answer = await post(client, "translations", response_format="verbose_json")
    assert (answer.json()["task"], answer.json()["language"]) == ("translate", "english")
    assert TRANSLATE in engine.asked[0].prompt_ids


@pytest.mark.parametrize(
    ("languages", "heard"), [(["de", "en"], "german"), (["EN"], "english"), ([" "], "german"), ([], "german")]
)
async def test_a_language_is_one_of_those_that_may_be(
    languages: list[str], heard: str, client: httpx.AsyncClient
) -> None:
    """The engine hears German."""
    answer = await post(client, response_format="verbose_json", **{"languages[]": languages})
    assert answer.json()["language"] == heard


async def test_keywords_come_before_the_prompt(client: httpx.AsyncClient, engine: HearingEngine) -> None:
    await post(client, **{"keywords[]": ["Ada", "Bob Byte"], "prompt": "Good day."})
    assert engine.tokenized == [" Ada, Bob Byte. Good day."]
    await post(client, **{"keywords[]": "Ada"})
    assert engine.tokenized[1:] == [" Ada."]
    await post(client, prompt='{"a": 1}')
    assert engine.tokenized[2:] == [' {"a": 1}']


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"language": "xx"}, "language"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "hot"}, "'temperature': expected a decimal, but got a string"),
        ({"stream": "maybe"}, "'stream': expected a boolean, but got a string"),
        ({"response_format": "mp3"}, "response_format"),
        ({"response_format": "srt", "stream": "true"}, "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"response_format": "diarized_json"}, "response_format"),
        ({"known_speaker_names[]": "me"}, "known_speaker_names"),
        ({"known_speaker_references[]": "data:audio/wav;base64,UklGRg=="}, "known_speaker_references"),
        ({"languages[]": ["en", "xx"]}, "languages"),
        ({"languages[]": "de", "language": "en"}, "languages"),
        ({"languages": "de"}, "languages"),
        ({"keywords[]": "a" * 257}, "keywords"),
        ({"model[]": "other"}, "'model[]' comes twice or in two forms"),
        ({"model[name]": "other"}, "'model[name]' comes twice or in two forms"),
        ({"model": [NAME, "other"]}, "'model' comes twice or in two forms"),
        ({"keywords[]": "a", "keywords[0]": "b"}, "'keywords[0]' comes twice or in two forms"),
        ({"keywords[0]": "a", "keywords[]": "b"}, "'keywords[]' comes twice or in two forms"),
        ({"chunking_strategy[type]": ["server_vad", "auto"]}, "'chunking_strategy[type]' comes twice"),
        ({"chunking_strategy": "auto", "chunking_strategy[type]": "server_vad"}, "'chunking_strategy[type]' comes"),
        ({"language[": "de"}, "'language[' does not end in ]"),
        ({"chunking_strategy": '{"type": ' * 7000}, "chunking_strategy"),
        ({"language": '{"a": 1}'}, "language"),
    ],
)
async def test_what_is_refused_is_named(client: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    answer = await post(client, **fields)
    assert answer.status_code == 400
    assert param in json.dumps(answer.json()["error"]), answer.text


async def test_a_file_over_the_limit_is_too_large(client: httpx.AsyncClient, engine: HearingEngine) -> None:
    files = {"file": ("talk.wav", bytes(LARGEST_FILE + 1))}
    answer = await client.post("/v1/audio/transcriptions", data={"model": NAME}, files=files)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    assert answer.json()["error"]["param"] == "file"
    assert str(LARGEST_FILE) in answer.text and engine.asked == []
