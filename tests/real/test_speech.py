"""The published Whisper base as it is served: words that flite and espeak-ng said, their times, their language.

sounds/: Harvard sentences (IEEE 297, list 1) by flite's slt, and three German sentences by espeak-ng; Opus.
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
from tools.speech.report import wrong_words

SOUNDS = Path(__file__).parent / "sounds"
MODEL = "whisper-base"
SAID = (
    "The birch canoe slid on the smooth planks. Glue the sheet to the dark blue background. It is easy to tell the "
    "depth of a well. These days a chicken leg is a rare dish. Rice is often served in round bowls. The juice of "
    "lemons makes fine punch. The box was thrown beside the parked truck. The hogs were fed chopped corn and garbage. "
    "Four hours of steady work faced us. A large size in stockings is hard to sell."
)
MOST_WRONG = 0.1  # faster-whisper 1.2.1 with float32 has 0.086


@pytest.fixture(scope="module")
def server(real_models: RealModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = fetched(real_models, MODEL)
    with serving(str(folder), cache=tmp_path_factory.mktemp("bundles")) as running:
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
