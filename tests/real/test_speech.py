"""The published Whisper base as it is served: words that flite and espeak-ng said, their times, their language.

sounds/: Harvard sentences (IEEE 297, list 1) by flite's slt, three German sentences by espeak-ng, and the texts of
tools.speech by flite's rms, which begin at BEGINS; Opus.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import openai
import pytest

from tests.clients.environments import run_client
from tests.live import LiveServer, serving
from tests.real.conftest import fetched
from tests.real.recordings import write_pcm
from tools.real_models.fetch import RealModels
from tools.speech.recordings import TEXTS
from tools.speech.report import wrong_words

SOUNDS = Path(__file__).parent / "sounds"
MODEL = "whisper-base"
SAID = (
    "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background. It is easy to tell the "
    "depth of a well. These days a chicken leg is a rare dish. Rice is often served in round bowls. The juice of "
    "lemons makes fine punch. The box was thrown beside the parked truck. The hogs were fed chopped corn and garbage. "
    "Four hours of steady work faced us. A large size in stockings is hard to sell."
)
BEGINS, MOST_WRONG_LONG = (0.0, 16.82, 32.73, 52.5, 72.3, 90.31), 0.05
MOST_WRONG = 0.1  # faster-whisper 1.2.1 with float32 has 0.086


@pytest.fixture(scope="module")
def server(real_models: RealModels, bundle_cache: Path) -> Iterator[LiveServer]:
    with serving(str(fetched(real_models, MODEL)), cache=bundle_cache) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("strategy", [None, "auto"])
def test_what_was_said(client: openai.OpenAI, strategy: str | None) -> None:
    more = {"chunking_strategy": strategy} if strategy else {}
    found = client.audio.transcriptions.create(file=SOUNDS / "harvard.opus", model=MODEL, **more)
    wrong, words = wrong_words(SAID, found.text)
    assert wrong / words <= MOST_WRONG, found.text


def test_words_are_where_they_are_said(client: openai.OpenAI) -> None:
    """Where faster-whisper 1.2.1 hears them, with float32."""
    found = client.audio.transcriptions.create(
        file=SOUNDS / "harvard.opus", model=MODEL, response_format="verbose_json", timestamp_granularities=["word"]
    )
    assert found.language == "english"
    times = {re.sub(r"\W", "", word.word.lower()): word.start for word in found.words}
    for word, start in (("blue", 3.7), ("chicken", 7.86), ("punch", 13.88), ("garbage", 19.02), ("sell", 24.7)):
        assert times[word] == pytest.approx(start, abs=0.1), word
    assert all(before.start <= after.start for before, after in pairwise(found.words))


def test_language_is_heard(client: openai.OpenAI) -> None:
    found = client.audio.transcriptions.create(file=SOUNDS / "german.opus", model=MODEL, response_format="verbose_json")
    assert found.language == "german"
    assert "Guten Morgen" in found.text


def test_a_long_recording_is_cut_where_nobody_speaks(client: openai.OpenAI) -> None:
    """Six texts with 3 s of silence between them, in windows of at most 30 s; 5 of 277 words are wrong without cuts."""
    found = client.audio.transcriptions.create(
        file=SOUNDS / "texts.opus", model=MODEL, response_format="verbose_json", chunking_strategy="auto"
    )
    wrong, words = wrong_words(" ".join(TEXTS.read_text(encoding="utf-8").splitlines()), found.text)
    assert wrong / words <= MOST_WRONG_LONG, found.text
    assert found.duration == pytest.approx(BEGINS[-1] + 15.06, abs=0.1)
    times = [time for segment in found.segments for time in (segment.start, segment.end)]
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] <= found.duration
    windows = sorted({segment.seek / 100 for segment in found.segments})
    assert len(windows) > 3
    assert all(min(abs(begin - window) for begin in BEGINS) < 0.4 for window in windows)


def test_a_language_is_forced(client: openai.OpenAI) -> None:
    given = {"file": SOUNDS / "german.opus", "model": MODEL, "response_format": "verbose_json"}
    german = client.audio.transcriptions.create(language="de", **given)
    assert german.language == "german"
    assert {"guten", "morgen", "heute", "wir", "gehen", "kommt", "hund"} <= words_in(german.text)
    among = client.audio.transcriptions.create(**given, extra_body={"languages": ["fr", "en"]})
    assert among.language in ("french", "english")
    with pytest.warns(DeprecationWarning):
        english = client.audio.translations.create(file=SOUNDS / "german.opus", model=MODEL)
    assert {"good", "morning", "today", "we", "with"} <= words_in(english.text)  # "comes" depends on the processor


def words_in(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def test_keywords_and_a_prompt_guide(client: openai.OpenAI) -> None:
    """Unguided it hears a park truck and no canoe; how far it is guided differs by processor."""
    given = {"file": SOUNDS / "harvard.opus", "model": MODEL}
    keywords = ["Birch canoe", "parked truck"]
    alone = client.audio.transcriptions.create(**given).text
    guided = client.audio.transcriptions.create(**given, extra_body={"keywords": keywords}).text
    assert sum(word in alone for word in keywords) < sum(word in guided for word in keywords), (alone, guided)
    assert "BIRCH CANOE" in client.audio.transcriptions.create(**given, prompt="THE BIRCH CANOE, THE GLUE.").text


@pytest.mark.parametrize("turns", ["server_vad", "none"])
def test_what_was_said_live(server: LiveServer, turns: str, tmp_path: Path) -> None:
    sound = write_pcm("harvard.opus", tmp_path / "harvard.pcm")
    told = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL}
    done = run_client("openai_python", told | {"SOUND": str(sound), "TURNS": turns}, "realtime.py")
    assert done.code == 0, done.output + done.errors
    found = json.loads(done.last_line())
    assert found["deltas"] == {item: text for item, text in found["transcripts"].items() if text}
    assert len(found["items"]) > 2 or turns == "none"
    text = " ".join(found["transcripts"][item] for item in found["items"])
    wrong, words = wrong_words(SAID, text)
    assert wrong / words <= MOST_WRONG, text


def test_words_come_while_somebody_speaks(server: LiveServer, tmp_path: Path) -> None:
    """Before the client says that this was all."""
    sound = write_pcm("harvard.opus", tmp_path / "harvard.pcm", seconds=6.0)
    told = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL, "PACED": "1"}
    done = run_client("openai_python", told | {"SOUND": str(sound), "TURNS": "none"}, "realtime.py")
    assert done.code == 0, done.output + done.errors
    found = json.loads(done.last_line())
    kinds = found["kinds"]
    before = kinds[: kinds.index("input_audio_buffer.committed")]
    assert "conversation.item.input_audio_transcription.delta" in before  # how many says how fast the machine is
    assert found["deltas"] == found["transcripts"]
