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


@pytest.fixture(scope="module")
def said() -> list[ReadAloud]:
    try:
        return recordings_of_people(default_folder())
    except FetchFailed as error:
        pytest.fail(f"recordings of people cannot be tested: {error}", pytrace=False)


def test_no_more_words_are_wrong_than_with_faster_whisper(
    said: list[ReadAloud], real_models: RealModels, tmp_path: Path
) -> None:
    """Both with weights of 8 bits, greedily, and with higher temperatures for what is improbable."""
    folder = fetched(real_models, MODEL)
    with (
        serving(str(folder), cache=tmp_path / "cache") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        ours = list(pool.map(lambda each: text_of(client, each.path), said))
    paths = json.dumps([str(each.path) for each in said])
    done = run_client("faster_whisper", {"MODEL": str(folder), "SOUNDS": paths}, "heard.py")
    assert done.code == 0, done.errors
    theirs = json.loads(done.last_line())
    counts = [[wrong_words(each.text, text) for each, text in zip(said, side, strict=True)] for side in (ours, theirs)]
    wrong, allowed = (sum(count for count, _ in side) for side in counts)
    words = sum(count for _, count in counts[0])
    assert words > 1_500
    assert wrong <= allowed + MOST_WORSE * words, f"{wrong} beside {allowed} of {words}"


def text_of(client: openai.OpenAI, path: Path) -> str:
    return client.audio.transcriptions.create(file=path, model=MODEL, language="en").text
