"""A person's speech, the prompts of Asterisk that a package of Debian holds, by the published Whisper base."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.clients.environments import run_client
from tests.live import serving
from tests.real.conftest import fetched
from tests.real.test_speech import MODEL
from tools.real_models.fetch import FetchFailed, RealModels, default_folder
from tools.speech.recordings import ReadAloud, recordings_of_people
from tools.speech.report import wrong_words

MOST_WORSE = 0.005  # of all words
FIGURES = Path(__file__).with_name("faster_whisper_words.json")


@pytest.fixture(scope="module")
def said() -> list[ReadAloud]:
    try:
        return recordings_of_people(default_folder())[::2]
    except FetchFailed as error:
        pytest.fail(f"recordings of people cannot be tested: {error}", pytrace=False)


def test_no_more_words_are_wrong_than_with_faster_whisper(
    said: list[ReadAloud], real_models: RealModels, bundle_cache: Path
) -> None:
    """Both with weights of 8 bits, greedily, and with higher temperatures for what is improbable."""
    with (
        serving(str(fetched(real_models, MODEL)), cache=bundle_cache) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        ours = list(pool.map(lambda each: text_of(client, each.path), said))
    wrong, words = counted(said, ours)
    stored = json.loads(FIGURES.read_text(encoding="utf-8"))
    assert (words, len(said)) == (stored["words"], stored["recordings"])
    assert wrong <= stored["wrong"] + MOST_WORSE * words, f"{wrong} beside {stored['wrong']} of {words}"


@pytest.mark.full
def test_faster_whisper_has_as_many_wrong_words_as_is_stored(said: list[ReadAloud], real_models: RealModels) -> None:
    paths = json.dumps([str(each.path) for each in said])
    done = run_client("faster_whisper", {"MODEL": str(fetched(real_models, MODEL)), "SOUNDS": paths}, "heard.py")
    assert done.code == 0, done.errors
    wrong, words = counted(said, json.loads(done.last_line()))
    stored = json.loads(FIGURES.read_text(encoding="utf-8"))
    assert words == stored["words"]
    assert abs(wrong - stored["wrong"]) <= MOST_WORSE * words, f"{wrong} beside {stored['wrong']} of {words}"


def counted(said: list[ReadAloud], texts: list[str]) -> tuple[int, int]:
    """Wrong words, and all of them."""
    counts = [wrong_words(each.text, text) for each, text in zip(said, texts, strict=True)]
    return sum(count for count, _ in counts), sum(count for _, count in counts)


def text_of(client: openai.OpenAI, path: Path) -> str:
    return client.audio.transcriptions.create(file=path, model=MODEL, language="en").text
