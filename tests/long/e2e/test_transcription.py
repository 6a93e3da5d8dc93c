"""openai-python sends sound to a real server with a small random Whisper."""

import io
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.clients.environments import python_environment
from tests.engine.speech.test_audio_pool import silent_film
from tests.live import LiveServer, serving
from tests.tiny_whisper import write_ctranslate2, write_wav

MODEL = "tiny-whisper"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """From a folder of CTranslate2, compiled at the start."""
    folder = tmp_path_factory.mktemp("speech")
    with serving(str(write_ctranslate2(folder / MODEL)), cache=folder / "cache") as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def sound(seconds: float = 2.5, seed: int = 0) -> io.BytesIO:
    """A WAV file of noise that comes and goes."""
    file = io.BytesIO()
    write_wav(file, seconds, seed)
    file.seek(0)
    file.name = "sound.wav"
    return file


def test_every_format_tells_the_same(client: openai.OpenAI) -> None:
    ask = client.audio.transcriptions
    given = {"model": MODEL, "language": "de"}
    whole = ask.create(file=sound(), response_format="verbose_json", **given)
    assert (whole.task, whole.language, whole.duration) == ("transcribe", "german", 2.5)
    assert whole.segments
    assert all(0 <= segment.start <= segment.end <= 3 for segment in whole.segments)
    assert ask.create(file=sound(), **given).text == whole.text
    assert ask.create(file=sound(), response_format="text", **given).strip() == whole.text
    srt = ask.create(file=sound(), response_format="srt", **given)
    assert srt.startswith("1\n00:00:0")
    assert srt.count(" --> ") == len(whole.segments)
    vtt = ask.create(file=sound(), response_format="vtt", **given)
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    assert vtt.count(" --> ") == len(whole.segments)


def test_words(client: openai.OpenAI) -> None:
    """Together they are the text, in order, within the recording."""
    ask, given = client.audio.transcriptions, {"model": MODEL, "language": "en", "response_format": "verbose_json"}
    both = ask.create(file=sound(), timestamp_granularities=["word", "segment"], **given)
    assert "".join(word.word for word in both.words).replace(" ", "") == both.text.replace(" ", "")
    assert all(0 <= word.start <= word.end <= 2.5 for word in both.words)
    assert [word.start for word in both.words] == sorted(word.start for word in both.words)
    alone = ask.create(file=sound(), timestamp_granularities=["word"], **given)
    assert (alone.words, alone.segments) == (both.words, None)


def test_stream_and_logprobs(client: openai.OpenAI) -> None:
    ask = client.audio.transcriptions
    plain = ask.create(file=sound(), model=MODEL, include=["logprobs"])
    assert plain.logprobs
    assert all(each.logprob <= 0 for each in plain.logprobs)
    events = list(ask.create(file=sound(), model=MODEL, stream=True))
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == plain.text
    deltas = [event.delta for event in events[:-1] if event.type == "transcript.text.delta"]
    assert "".join(deltas).strip() == plain.text


def test_translation_and_cutting(client: openai.OpenAI) -> None:
    with pytest.warns(DeprecationWarning):
        made = client.audio.translations.create(file=sound(), model=MODEL, response_format="verbose_json", prompt="abc")
    assert made.duration == 2.5
    for strategy in ("auto", {"type": "server_vad", "threshold": 0.0}):
        found = client.audio.transcriptions.create(file=sound(), model=MODEL, chunking_strategy=strategy)
        assert isinstance(found.text, str)


def test_at_once_as_alone(client: openai.OpenAI, server: LiveServer) -> None:
    def text(seed: int) -> str:
        return client.audio.transcriptions.create(file=sound(seed=seed), model=MODEL, language="en").text

    alone = [text(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(text, range(8))) == alone
    assert len(set(alone)) > 1


REFUSED = [
    ({"language": "xx"}, "language"),
    ({"temperature": "2"}, "temperature"),
    ({"response_format": "xml"}, "response_format"),
    ({"response_format": "srt", "stream": "true"}, "stream"),
    ({"response_format": "text", "include[]": "logprobs"}, "include"),
    ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
    ({"chunking_strategy": '{"type": "server_vad", "threshold": 7}'}, "chunking_strategy.threshold"),
    ({"known_speaker_names[]": "Anna"}, "known_speaker_names"),
    ({"colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[param for _, param in REFUSED])
def test_refused_by_name(server: LiveServer, fields: dict[str, str], param: str) -> None:
    files = {"file": ("sound.wav", sound().getvalue())}
    answer = httpx.post(f"{server.url}/v1/audio/transcriptions", data={"model": MODEL} | fields, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize(
    "data",
    [b"", b"RIFF", b"x" * 5000, sound().getvalue()[:60], silent_film()],
    ids=["empty", "head", "x", "cut", "film"],
)
def test_no_sound(server: LiveServer, data: bytes) -> None:
    answer = httpx.post(
        f"{server.url}/v1/audio/transcriptions", data={"model": MODEL}, files={"file": ("a.mp3", data)}, timeout=60
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file"), answer.text


def test_other_bodies_and_models(server: LiveServer) -> None:
    url = f"{server.url}/v1/audio/transcriptions"
    assert httpx.post(url, json={"model": MODEL}).status_code == 415
    assert httpx.post(url, data={"model": MODEL}, files={"other": b"x"}).json()["error"]["param"] == "other"
    told = httpx.post(
        f"{server.url}/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
    )
    assert (told.status_code, told.json()["error"]["param"]) == (400, "model"), told.text


def test_start_loads_no_decoder(server: LiveServer) -> None:
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "torch" not in maps
    assert "/av/" not in maps


@pytest.mark.parametrize("task", ["transcriptions", "translations"])
def test_the_command_line_of_openai(task: str, server: LiveServer, tmp_path: Path) -> None:
    """The last version that has one: the same text as the library gets."""
    write_wav(tmp_path / "sound.wav")
    asked = ["api", f"audio.{task}.create", "-m", MODEL, "-f", str(tmp_path / "sound.wav")]
    done = subprocess.run(
        [str(python_environment("openai_python_1")), "-m", "openai", "-b", f"{server.url}/v1/", "-k", "none", *asked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sound = (tmp_path / "sound.wav").read_bytes()
    given = {"files": {"file": ("sound.wav", sound)}, "data": {"model": MODEL}, "timeout": 60}
    expected = httpx.post(f"{server.url}/v1/audio/{task}", **given).json()["text"]
    assert json.loads(done.stdout)["text"] == expected
