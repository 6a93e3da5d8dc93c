"""openai-python's realtime client and a real server with a small random Whisper; what was said by flite, as Opus."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import run_client
from tests.live import LiveServer, serving
from tests.real.recordings import write_pcm
from tests.tiny_whisper import write_ctranslate2

MODEL = "tiny-whisper"
ITEM = "conversation.item.input_audio_transcription."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("speech")
    with serving(str(write_ctranslate2(folder / MODEL)), cache=folder / "cache") as running:
        yield running


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pcm("harvard.opus", tmp_path_factory.mktemp("sound") / "harvard.pcm", seconds=6.0)


def told(server: LiveServer, sound: Path, **variables: str) -> dict[str, Any]:
    """What the client prints."""
    given = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
    done = run_client("openai_python", given | {"SOUND": str(sound)} | variables, "realtime.py")
    assert done.code == 0, done.output + done.errors
    return dict(json.loads(done.last_line()))


def test_utterances_are_found_and_written(server: LiveServer, sound: Path) -> None:
    """Windows of the model are a second long, so that much is written early."""
    found = told(server, sound, TURNS="server_vad")
    kinds = found["kinds"]
    assert kinds[:2] == ["session.created", "session.updated"]
    assert len(found["items"]) == kinds.count("input_audio_buffer.speech_started") >= 2
    assert kinds.count("input_audio_buffer.speech_stopped") == kinds.count("conversation.item.added")
    said = {item: text for item, text in found["transcripts"].items() if text}
    assert said
    assert found["deltas"] == said


def test_one_utterance_committed_by_the_client(server: LiveServer, sound: Path) -> None:
    found = told(server, sound, TURNS="none")
    [item] = found["items"]
    assert found["transcripts"][item] == found["deltas"][item]
    assert found["kinds"].count(f"{ITEM}completed") == 1


def test_a_conversation_is_denied(server: LiveServer, sound: Path) -> None:
    found = told(server, sound, TURNS="none", QUERY='{"intent": "chat"}')
    assert (found["status"], found["error"]["param"]) == (400, "intent")


def test_a_worker_that_dies_costs_no_session(server: LiveServer, sound: Path) -> None:
    os.kill(server.worker_pid(), signal.SIGKILL)
    found = told(server, sound, TURNS="none")
    assert len(found["transcripts"]) == 1
