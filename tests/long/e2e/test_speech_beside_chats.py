"""One server with the embedded model and a small random Whisper: chats and transcriptions stream at the same time."""

import asyncio
import io
from collections.abc import Iterator

import openai
import pytest

from engine.demo.location import demo_folder
from tests.live import LiveServer, serving
from tests.tiny_whisper import write_ctranslate2, write_wav

pytestmark = pytest.mark.skipif(not (demo_folder() / "model.safetensors").is_file(), reason="needs the embedded model")
SPEECH, CHAT = "tiny-whisper", "demo"
CLIENTS = 3  # of each kind
SECONDS = 8.0  # windows of the model are a second long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("both")
    with serving(CHAT, str(write_ctranslate2(folder / SPEECH)), cache=folder / "cache") as running:
        yield running


async def told(client: openai.AsyncOpenAI, number: int, seen: list[str]) -> str:
    """seen: gets a name for every piece."""
    text = ""
    stream = await client.chat.completions.create(
        model=CHAT,
        messages=[{"role": "user", "content": f"Count from {number} to one hundred."}],
        max_tokens=100,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        seen.append(CHAT)
    return text


async def heard(client: openai.AsyncOpenAI, number: int, seen: list[str]) -> str:
    file = io.BytesIO()
    write_wav(file, SECONDS, number)
    given = {"file": ("sound.wav", file.getvalue()), "model": SPEECH, "language": "en"}
    text = whole = ""
    async for event in await client.audio.transcriptions.create(stream=True, **given):
        if event.type == "transcript.text.delta":
            text += event.delta
            seen.append(SPEECH)
        else:
            whole = event.text
    assert text.strip() == whole
    return text


async def test_both_stream_at_once_as_alone(server: LiveServer) -> None:
    """Chats follow each other until all that was said is written."""
    numbers, seen = range(CLIENTS), list[str]()
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chats = [await told(client, number, []) for number in numbers]
        texts = [await heard(client, number, []) for number in numbers]
        writing = asyncio.gather(*(heard(client, number, seen) for number in numbers))
        while not writing.done():
            assert await asyncio.gather(*(told(client, number, seen) for number in numbers)) == chats
        assert await writing == texts
    assert len(set(chats)) > 1 and len(set(texts)) > 1
    assert CHAT in seen[seen.index(SPEECH) : len(seen) - seen[::-1].index(SPEECH)]
