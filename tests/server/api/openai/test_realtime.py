"""Sessions of /v1/realtime with an engine that says what it is told to: events, settings, limits, hostile clients."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineFailure
from server.api.openai import realtime_session
from server.generation import window_writer
from tests.server.scripted_engine import ScriptedEngine
from tests.server.served import served
from tests.server.speaking_engine import DE, EN, PREVIOUS, START, SpeakingEngine
from tests.server.websocket_client import PATH, PATIENCE_S, UPGRADE, Client

ITEM = "conversation.item.input_audio_transcription."
Event = dict[str, Any]


class Loudness:
    """A detector that takes loud sound for speech."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, samples: bytes) -> np.ndarray:
        heard = np.frombuffer(self._rest + samples, "<i2")
        whole = len(heard) // 512
        self._rest = heard[512 * whole :].tobytes()
        return (np.abs(heard[: 512 * whole].astype(int)).reshape(whole, 512).max(axis=1, initial=0) > 500).astype("<f4")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loud sound is speech, and how long a text takes does not put off the next one."""
    monkeypatch.setattr(realtime_session, "SpeechDetector", Loudness)
    monkeypatch.setattr(window_writer, "PATIENCE", 0.0)


class Session:
    """A client; every event it gets has a name of its own."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.names: set[str] = set()
        self.created = self.event()

    def say(self, kind: str, **fields: Any) -> None:
        self.client.say(type=kind, **fields)

    def append(self, seconds: float, level: int = 0, rate: int = 24_000) -> None:
        data = np.full(round(seconds * rate), level, "<i2").tobytes()
        self.say("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    def event(self) -> Event:
        found: Event = self.client.event()
        assert found["event_id"] not in self.names
        self.names.add(found["event_id"])
        return found

    def until(self, kind: str) -> list[Event]:
        """All events up to one of this kind."""
        found = [self.event()]
        while found[-1]["type"] != kind:
            assert found[-1]["type"] != "error", found[-1]
            found.append(self.event())
        return found

    def update(self, **given: Any) -> Event:
        """Settings of the input."""
        self.say("session.update", session={"type": "transcription", "audio": {"input": given}})
        return self.event()

    def error(self) -> Event:
        found = self.event()
        assert found["type"] == "error", found
        return dict(found["error"])


@contextmanager
def session(engine: ScriptedEngine | None = None, *headers: str, **settings: Any) -> Iterator[Session]:
    """An open session, its first event read."""
    with (
        served(make_engine=lambda: engine or SpeakingEngine("hello you"), **settings) as server,
        Client(server, *UPGRADE, *headers) as client,
    ):
        assert client.status == 101, client.body
        yield Session(client)


def denied(*headers: str, path: str = PATH, engine: ScriptedEngine | None = None, **settings: Any) -> Event:
    """The error of a session that is not opened, with its status."""
    with (
        served(make_engine=lambda: engine or SpeakingEngine("hello you"), **settings) as server,
        Client(server, *UPGRADE, *headers, path=path) as client,
    ):
        assert client.status != 101
        return {"status": client.status, **json.loads(client.body)["error"]}


def manual(opened: Session) -> Session:
    assert opened.update(turn_detection=None)["session"]["audio"]["input"]["turn_detection"] is None
    return opened


def test_a_session_is_described() -> None:
    with session() as opened:
        created = opened.created
        assert created["type"] == "session.created"
        told = created["session"]
        assert (told["type"], told["object"]) == ("transcription", "realtime.transcription_session")
        assert told["audio"]["input"] == {
            "format": {"type": "audio/pcm", "rate": 24000},
            "noise_reduction": None,
            "transcription": {"model": "scripted", **dict.fromkeys(("language", "prompt", "keywords", "languages"))},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 500,
            },
        }


def test_settings_that_are_not_given_stay() -> None:
    with session() as opened:
        opened.update(transcription={"model": "scripted", "languages": ["de"], "keywords": ["Ada"]})
        opened.update(turn_detection={"type": "server_vad", "silence_duration_ms": 900})
        told = opened.update(transcription={"prompt": "Namen"})["session"]["audio"]["input"]
    kept = {"languages": ["de"], "keywords": ["Ada"], "language": None}
    assert told["transcription"] == {"model": "scripted", "prompt": "Namen", **kept}
    assert told["turn_detection"]["silence_duration_ms"] == 900


def test_speech_becomes_an_item_when_silence_follows() -> None:
    with session() as opened:
        opened.append(1.0)
        opened.append(1.0, level=9000)
        opened.append(1.0)
        found = opened.until(f"{ITEM}completed")
    kinds = [each["type"] for each in found]
    assert kinds == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        f"{ITEM}delta",
        f"{ITEM}completed",
    ]
    started, stopped, committed, added, _, delta, done = found
    assert abs(started["audio_start_ms"] - 700) < 40
    assert abs(stopped["audio_end_ms"] - 2500) < 40
    assert committed["previous_item_id"] is None
    assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert {each.get("item_id", each.get("item", {}).get("id")) for each in found} == {started["item_id"]}
    assert (delta["delta"], done["transcript"], done["content_index"]) == ("hello you", "hello you", 0)
    assert done["usage"] == {"type": "duration", "seconds": 2}


def test_text_comes_while_somebody_speaks() -> None:
    engine = SpeakingEngine("I scream", "I scream for", "I scream for ice")
    with session(engine) as opened:
        opened.append(1.2, level=9000)
        assert engine.has_asked.acquire(timeout=30)
        opened.append(5.0, level=9000)
        early = opened.until(f"{ITEM}delta")
        assert [each["type"] for each in early] == ["input_audio_buffer.speech_started", f"{ITEM}delta"]
        opened.append(1.0)
        found = early + opened.until(f"{ITEM}completed")
    deltas = [each["delta"] for each in found if each["type"] == f"{ITEM}delta"]
    assert deltas[0] == "I scream" and len(deltas) > 1
    assert "".join(deltas) == found[-1]["transcript"] == "I scream for ice"


def test_items_follow_each_other() -> None:
    with session(SpeakingEngine("one", "two")) as opened:
        for _ in range(2):
            opened.append(0.5, level=9000)
            opened.append(1.0)
        found = opened.until(f"{ITEM}completed") + opened.until(f"{ITEM}completed")
    committed = [each for each in found if each["type"] == "input_audio_buffer.committed"]
    assert committed[1]["previous_item_id"] == committed[0]["item_id"]
    assert [each["transcript"] for each in found if each["type"] == f"{ITEM}completed"] == ["one", "two"]


def test_the_client_commits_by_itself() -> None:
    engine = SpeakingEngine("said")
    with session(engine) as opened:
        manual(opened).update(transcription={"language": "en", "prompt": "a few names"})
        opened.append(1.0)
        opened.say("input_audio_buffer.commit", event_id="mine")
        found = opened.until(f"{ITEM}completed")
        assert [each["type"] for each in found][:2] == ["input_audio_buffer.committed", "conversation.item.added"]
        opened.say("input_audio_buffer.commit", event_id="again")
        assert (error := opened.error())["code"] == "input_audio_buffer_commit_empty"
    assert error["event_id"] == "again"
    prompt = engine.asked[-1].prompt_ids
    assert prompt[0] == PREVIOUS
    assert EN in prompt


def test_the_client_commits_what_was_not_found_to_be_speech() -> None:
    with session() as opened:
        for before, seconds in ((1.0, 2), (61.0, 60)):  # of longer silence the end
            opened.append(before)
            opened.append(0.5, level=9)
            opened.say("input_audio_buffer.commit")
            found = opened.until(f"{ITEM}completed")
            assert found[0]["type"] == "input_audio_buffer.committed"
            assert found[-1]["usage"]["seconds"] == seconds
        opened.append(2.0)
        manual(opened)
        opened.append(0.5)
        opened.say("input_audio_buffer.commit")
        assert opened.until(f"{ITEM}completed")[-1]["usage"]["seconds"] == 3


def test_keywords_and_languages_guide() -> None:
    """The engine hears German."""
    engine = SpeakingEngine("said")
    with session(engine) as opened:
        manual(opened).update(transcription={"keywords": ["Ada", "Bob"], "languages": ["en"]})
        opened.append(1.0)
        opened.say("input_audio_buffer.commit")
        opened.until(f"{ITEM}completed")
    assert engine.asked[-1].prompt_ids[:5] == (PREVIOUS, 5, 5, START, EN)


def test_cleared_sound_is_not_written() -> None:
    engine = SpeakingEngine("said")
    with session(engine) as opened:
        manual(opened).append(0.5)
        opened.say("input_audio_buffer.clear")
        opened.until("input_audio_buffer.cleared")
        opened.say("input_audio_buffer.commit")
        assert opened.error()["code"] == "input_audio_buffer_commit_empty"
        opened.append(0.5)
        opened.say("input_audio_buffer.commit")
        done = opened.until(f"{ITEM}completed")[-1]
    assert (len(engine.asked), done["usage"]["seconds"]) == (1, 1)


@pytest.mark.parametrize("form", ["audio/pcmu", "audio/pcma"])
def test_g711(form: str) -> None:
    with session() as opened:
        manual(opened).update(format={"type": form})
        opened.say("input_audio_buffer.append", audio=base64.b64encode(b"\xd5" * 8_001).decode())
        opened.say("input_audio_buffer.commit")
        assert opened.until(f"{ITEM}completed")[-1]["usage"]["seconds"] == 1


def test_logprobs_of_every_token() -> None:
    with session() as opened:
        opened.say("session.update", session={"include": ["item.input_audio_transcription.logprobs"]})
        opened.event()
        manual(opened).append(0.5)
        opened.say("input_audio_buffer.commit")
        done = opened.until(f"{ITEM}completed")[-1]
    assert done["logprobs"] == [
        {"token": "hello", "logprob": -0.1, "bytes": list(b"hello")},
        {"token": " you", "logprob": -0.1, "bytes": list(b" you")},
    ]


def test_the_older_form() -> None:
    with session(None, "OpenAI-Beta: realtime=v1") as opened:
        created = opened.created
        assert created["type"] == "transcription_session.created"
        assert created["session"]["input_audio_format"] == "pcm16"
        given = {"input_audio_transcription": {"language": "de"}, "turn_detection": None}
        opened.say("transcription_session.update", session=given | {"input_audio_format": "g711_ulaw"})
        updated = opened.event()
        assert updated["type"] == "transcription_session.updated"
        assert updated["session"]["input_audio_format"] == "g711_ulaw"
        assert updated["session"]["turn_detection"] is None
        opened.say("input_audio_buffer.append", audio=base64.b64encode(b"\xff" * 4_000).decode())
        opened.say("input_audio_buffer.commit")
        kinds = [each["type"] for each in opened.until(f"{ITEM}completed")]
    assert kinds[:2] == ["input_audio_buffer.committed", "conversation.item.created"]


def test_without_a_language_the_sound_tells() -> None:
    engine = SpeakingEngine("ja")
    with session(engine) as opened:
        manual(opened).append(0.5)
        opened.say("input_audio_buffer.commit")
        opened.until(f"{ITEM}completed")
    assert DE in engine.asked[-1].prompt_ids


def test_an_engine_that_fails_costs_the_item_and_not_the_session() -> None:
    with session(SpeakingEngine(EngineFailure("The worker has gone."), "better")) as opened:
        manual(opened)
        for kind in ("failed", "completed"):
            opened.append(0.5)
            opened.say("input_audio_buffer.commit")
            last = opened.until(f"{ITEM}{kind}")[-1]
            assert last["error"]["type"] == "server_error" if kind == "failed" else last["transcript"] == "better"


def test_what_follows_an_item_that_failed_early_is_another_item() -> None:
    with session(SpeakingEngine(EngineFailure("The worker has gone."), "better")) as opened:
        manual(opened).append(2.0)
        failed = opened.until(f"{ITEM}failed")[-1]
        opened.append(0.5)
        opened.say("input_audio_buffer.commit")
        done = opened.until(f"{ITEM}completed")[-1]
    assert (done["transcript"], done["usage"]["seconds"]) == ("better", 1)
    assert done["item_id"] != failed["item_id"]


# -- what is refused ----------------------------------------------------------------------------------------------

INPUT = "session.audio.input"
REFUSED = [
    ({"type": "response.create"}, "type", "unsupported_value"),
    ({"type": "input_audio_buffer.commit", "colour": "red"}, "colour", "unknown_parameter"),
    ({"event_id": "x"}, "type", "missing_required_parameter"),
    ({"type": "input_audio_buffer.append"}, "audio", "missing_required_parameter"),
    ({"type": "input_audio_buffer.append", "audio": 7}, "audio", "invalid_type"),
    ({"type": "input_audio_buffer.append", "audio": "§§§"}, "audio", "invalid_value"),
    ({"type": "input_audio_buffer.append", "audio": "QUI"}, "audio", "invalid_value"),
    ({"type": "input_audio_buffer.append", "audio": "QQ=="}, "audio", "invalid_value"),  # half a sample
    ({"type": "input_audio_buffer.commit"}, None, "input_audio_buffer_commit_empty"),
    ({"type": "session.update", "session": {"type": "realtime"}}, "session.type", "unsupported_value"),
    ({"type": "session.update", "session": {"voice": "alloy"}}, "session.voice", "unknown_parameter"),
    ({"type": "transcription_session.update", "session": {"x": 1}}, "session.x", "unknown_parameter"),
]
REFUSED_INPUTS = [
    ({"noise_reduction": {"type": "near_field"}}, "noise_reduction", "unsupported_parameter"),
    ({"turn_detection": {"type": "semantic_vad"}}, "turn_detection.type", "unsupported_value"),
    ({"turn_detection": {"type": "server_vad", "threshold": 2}}, "turn_detection.threshold", None),
    ({"turn_detection": {"type": "server_vad", "create_response": True}}, "turn_detection.create_response", None),
    ({"turn_detection": {"type": "server_vad", "interrupt_response": True}}, "turn_detection.interrupt_response", None),
    ({"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5000}}, "turn_detection.idle_timeout_ms", None),
    ({"format": {"type": "audio/pcm", "rate": 16000}}, "format.rate", "unsupported_value"),
    ({"format": {"type": "audio/opus"}}, "format.type", "unsupported_value"),
    ({"transcription": {"model": "gpt-live-transcribe"}}, "transcription.model", "model_not_found"),
    ({"transcription": {"language": "xx"}}, "transcription.language", "invalid_value"),
    ({"transcription": {"delay": "low"}}, "transcription.delay", "unsupported_parameter"),
    ({"transcription": {"languages": ["en", "xx"]}}, "transcription.languages", "invalid_value"),
    ({"transcription": {"languages": ["en"], "language": "en"}}, "transcription.languages", "invalid_value"),
    ({"transcription": {"prompt": "a" * 9000}}, "transcription.prompt", "string_above_max_length"),
]


def test_events_that_are_refused_by_name() -> None:
    """And the session goes on."""
    with session() as opened:
        for event, param, code in REFUSED:
            opened.client.say(**event | {"event_id": "mine"})
            error = opened.error()
            assert (error["param"], error["code"], error["event_id"]) == (param, code, "mine"), error
        for given, param, code in REFUSED_INPUTS:
            told = opened.update(**given)["error"]
            assert told["param"] == f"{INPUT}.{param}", told
            assert code is None or told["code"] == code, told
        assert opened.update(turn_detection=None)["type"] == "session.updated"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"type": NaN}', "[" * 100_000, '{"type": ' + "[" * 70 + "]" * 70 + "}", '"\\ud800"'],
    ids=["empty", "cut", "list", "null", "nan", "deep", "nested", "surrogate"],
)
def test_texts_that_are_no_event(text: str) -> None:
    with session() as opened:
        opened.client.send(text)
        assert opened.error()["type"] == "invalid_request_error"
        opened.client.send(text.encode())
        assert "binary" in opened.error()["message"]
        manual(opened)


def test_the_way_sound_is_read_cannot_change_within_an_utterance() -> None:
    with session() as opened:
        opened.append(0.5, level=9000)
        opened.until("input_audio_buffer.speech_started")
        assert opened.update(turn_detection=None)["error"]["param"] == f"{INPUT}.turn_detection"
        assert opened.update(format={"type": "audio/pcmu"})["error"]["param"] == f"{INPUT}.format"
        opened.say("transcription_session.update", session={"input_audio_format": "g711_alaw"})
        assert opened.error()["param"] == "session.input_audio_format"


DENIED = [
    ("/v1/realtime", 400, "intent"),
    ("/v1/realtime?intent=chat&model=scripted", 400, "intent"),
    ("/v1/realtime?model=scripted", 400, "intent"),
    (f"{PATH}&call_id=7", 400, "call_id"),
    (f"{PATH}&model=other", 404, "model"),
]


@pytest.mark.parametrize(("path", "status", "param"), DENIED)
def test_what_is_denied_before_a_session(path: str, status: int, param: str) -> None:
    error = denied(path=path)
    assert (error["status"], error["param"]) == (status, param)


def test_a_model_that_does_not_transcribe() -> None:
    assert denied(engine=ScriptedEngine())["code"] == "model_not_supported"


def test_a_server_that_drains_opens_no_session() -> None:
    with served(make_engine=lambda: SpeakingEngine("a")) as server:
        server.in_flight.draining = True
        with Client(server, *UPGRADE) as client:
            assert client.status == 503


def test_a_plain_request_is_told_to_upgrade() -> None:
    with served(make_engine=lambda: SpeakingEngine("a")) as server, Client(server) as client:
        assert client.status == 426
        assert "upgrade: websocket" in client.head


# -- who may, and how much ----------------------------------------------------------------------------------------

KEY = "sk-mine"
IN_BROWSERS = f"Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{KEY}, openai-beta.realtime-v1"


@pytest.mark.parametrize("shown", [f"Authorization: Bearer {KEY}", f"api-key: {KEY}", IN_BROWSERS])
def test_a_key_opens_a_session(shown: str) -> None:
    with session(None, shown, api_keys=f"me:{KEY}") as opened:
        assert ("sec-websocket-protocol: realtime\r" in f"{opened.client.head}\r") is (shown == IN_BROWSERS)
        assert KEY not in opened.client.head


@pytest.mark.parametrize("shown", ["X: y", "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.other"])
def test_no_key_is_401(shown: str) -> None:
    assert denied(shown, api_keys=f"me:{KEY}")["status"] == 401


ORIGINS = [("http://localhost", "", True), ("https://evil.example", "", False), ("null", "", False)]
ORIGINS += [("https://mine.example", "https://mine.example", True), ("https://evil.example", "*", True)]


@pytest.mark.parametrize(("origin", "allowed", "may"), ORIGINS)
def test_pages_of_others_open_no_session(origin: str, allowed: str, may: bool) -> None:
    """A browser asks nobody before it opens a WebSocket."""
    if may:
        with session(None, f"Origin: {origin}", cors_origins=allowed):
            return
    error = denied(f"Origin: {origin}", cors_origins=allowed)
    assert (error["status"], error["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("limit", ["max_concurrent", "requests_per_minute", ""])
def test_sessions_of_one_caller_are_limited(limit: str) -> None:
    allowed = 1 if limit else 16
    with (
        served(make_engine=lambda: SpeakingEngine("a"), **({limit: 1} if limit else {})) as server,
        ExitStack() as stack,
    ):
        opened = [stack.enter_context(Client(server, *UPGRADE)) for _ in range(allowed + 1)]
    assert [client.status for client in opened] == [*[101] * allowed, 429]
    assert json.loads(opened[-1].body)["error"]["code"] == "rate_limit_exceeded"


def test_a_flood_of_small_events_is_answered_one_by_one() -> None:
    with session() as opened:
        for number in range(500):
            opened.client.say(type="nothing", event_id=f"n{number}")
        assert [opened.error()["event_id"] for _ in range(500)] == [f"n{number}" for number in range(500)]


def test_a_long_recording_at_once_is_written_window_by_window() -> None:
    """More than is ever buffered: reading waits for writing."""
    with session(SpeakingEngine("part")) as opened:
        manual(opened)
        for _ in range(10):
            opened.append(20.0)
        opened.say("input_audio_buffer.commit")
        done = opened.until(f"{ITEM}completed")[-1]
    assert (done["transcript"], done["usage"]["seconds"]) == ("part" * 10, 200)


def test_silence_of_the_client_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime_session, "IDLE_S", 0.05)
    with session() as opened:
        assert opened.error()["code"] == "session_expired"
        assert opened.client.end() == 1000


def test_who_takes_no_events_loses_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime_session, "SEND_S", 0.2)
    with session(max_concurrent=1) as opened:
        opened.client.socket.settimeout(0.5)
        with suppress(OSError):
            while True:
                opened.client.say(type="nothing", event_id="n" * 256)
        ends_s = time.monotonic() + PATIENCE_S
        while Client(opened.client.server, *UPGRADE).closed().status != 101:
            assert time.monotonic() < ends_s
