"""Text of one utterance while it goes on: what was given stays, and together it is the transcript."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from engine.errors import Busy, BusyReason, EngineFailure
from engine.speech.live import LiveSound, Utterance
from server.generation import window_writer
from server.generation.window_writer import LiveTranscript, WindowWriter
from server.http.errors import RequestTimeout
from tests.server.speaking_engine import DE, EN, NO_TIMES, SpeakingEngine

SECOND = 16_000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a text takes does not put off the next one."""
    monkeypatch.setattr(window_writer, "PATIENCE", 0.0)


class Live:
    """A transcript that is read while sound comes."""

    def __init__(self, engine: SpeakingEngine, language: str = "en", limit_s: float = 0.0) -> None:
        self.engine, self.sound, self.utterance = engine, LiveSound(), Utterance("item", 0, 0)
        self.writer = WindowWriter(engine, "item", language)
        self.given: list[str] = []
        self.transcript = LiveTranscript(self.writer, self.sound, self.utterance, [], limit_s)
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for delta in self.transcript.deltas():
            self.given.append(delta.text)
            assert "".join(score.token for score in delta.logprobs).strip() == delta.text.strip()

    def hear(self, seconds: float, speech: Sequence[float] | None = None) -> None:
        chunks = round(seconds * SECOND / 512)
        self.sound.append(np.ones(chunks * 512, np.int16), np.array(speech or [0.9] * chunks, np.float32))

    async def until_asked(self, texts: int) -> None:
        """That many texts have been asked for, and what they gave is read."""
        while len(self.engine.asked) < texts:
            await asyncio.sleep(0.001)
        await self.settle()

    @staticmethod
    async def settle() -> None:
        """What can go on without more sound has gone on."""
        for _ in range(20):
            await asyncio.sleep(0.001)

    async def end(self) -> list[str]:
        self.utterance.end = self.sound.end
        self.sound.changed()
        await self.reading
        return self.given


async def test_words_that_two_texts_agree_on_are_given_and_stay() -> None:
    live = Live(SpeakingEngine("I scream", "I scream you", "ice cream you scream for", "I scream you scream"))
    for count in (1, 2, 3):
        live.hear(1.1)
        await live.until_asked(count)
    assert live.given == ["I scream", " you"]
    assert await live.end() == ["I scream", " you", " scream"]
    begun = [request.prompt_ids[request.prompt_ids.index(NO_TIMES) + 1 :] for request in live.engine.asked]
    assert [len(each) for each in begun] == [0, 0, 2, 3]
    assert live.engine.live == set()


async def test_an_early_text_comes_with_each_second() -> None:
    live = Live(SpeakingEngine("one "))
    for seconds, texts in ((0.5, 0), (0.6, 1), (0.5, 1), (0.6, 2)):
        live.hear(seconds)
        await live.until_asked(texts)
        assert len(live.engine.asked) == texts
    assert "".join(await live.end()) == "one"
    assert len(live.engine.asked) == 3


async def test_where_nothing_was_heard_nothing_is_asked() -> None:
    live = Live(SpeakingEngine("one"))
    assert await live.end() == []
    assert live.engine.submitted == []


async def test_texts_that_cannot_be_trusted_are_not_given_early() -> None:
    """Where nothing is more probable, the last one counts."""
    live = Live(SpeakingEngine("so so", logprob=-2.0))
    for count in (1, 2):
        live.hear(1.1)
        await live.until_asked(count)
    assert live.given == []
    assert await live.end() == ["so so"]


async def test_an_end_does_not_wait_for_a_text_that_is_written_early() -> None:
    live = Live(SpeakingEngine("one", "one two"))
    live.engine.hold(1)  # the language
    live.hear(1.1)
    await live.until_asked(1)
    live.utterance.end = live.sound.end
    live.sound.changed()
    await asyncio.sleep(0)
    live.engine.release(100)
    await live.reading
    assert live.given == ["one two"]
    assert len(live.engine.aborted) == 1


async def test_nothing_said_is_no_text() -> None:
    live = Live(SpeakingEngine(""))
    live.hear(0.5)
    assert await live.end() == []


async def test_a_full_window_is_cut_where_it_is_quietest() -> None:
    """Behind what was written early; the next window begins there."""
    live = Live(SpeakingEngine("first part", "first part", "second part"))
    quiet = [0.9] * 1100
    quiet[800] = 0.1
    live.hear(35.2, quiet)
    await live.until_asked(2)
    assert live.utterance.needed == 800 * 512
    assert await live.end() == ["first part", "second part"]


async def test_the_language_is_asked_again_until_words_are_given() -> None:
    live = Live(SpeakingEngine("ja", "ja genau", "ja genau so"), language="")
    for live.engine.language in (EN, DE, EN):
        live.hear(1.1)
        await live.until_asked(len(live.engine.asked) + 1)
    assert live.given == ["ja", " genau"]
    assert await live.end() == ["ja", " genau", " so"]
    asked = [[token for token in each.prompt_ids if token in (DE, EN)] for each in live.engine.asked]
    assert asked == [[EN], [DE], [DE], [DE]]
    assert live.writer.language == "de"


async def test_a_full_engine_costs_an_early_text_alone() -> None:
    live = Live(SpeakingEngine("one"))
    live.engine.refusal = Busy("Full.", BusyReason.REQUESTS, 1.0)
    live.hear(1.1)
    for _ in range(100):
        await asyncio.sleep(0.001)
    live.engine.refusal = None
    assert await live.end() == ["one"]


@pytest.mark.parametrize("seconds", [0.5, 35.2])
async def test_what_the_engine_raises_is_raised(seconds: float) -> None:
    live = Live(SpeakingEngine(EngineFailure("The worker has gone.")))
    live.hear(seconds)
    with pytest.raises(EngineFailure):
        await live.end()


async def test_a_last_text_has_its_time() -> None:
    live = Live(SpeakingEngine("one"), limit_s=0.01)
    live.engine.hold(0)
    live.hear(0.5)
    with pytest.raises(RequestTimeout):
        await live.end()
    assert live.engine.live == set()
